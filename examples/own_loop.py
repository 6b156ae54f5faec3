"""A training loop of your own: the certified SAIB and the entropy term around a torchvision ResNet.

    python examples/own_loop.py

2,000 generated images, crops as the only augmentation, three epochs, no download. It prints the kNN accuracy (each
image left out of its own vote) before and after; labels are used for that number only.
"""

import torch
from torch.nn.functional import normalize

import iecl
from iecl.backbones.factory import make_backbone
from iecl.data.datasets import FACTS
from iecl.data.factory import open_source
from iecl.data.loader import Loader
from iecl.data.settings import DataSettings
from iecl.estimators.coding_rate import coding_rate
from iecl.losses.nt_xent import nt_xent
from iecl.meters.embedding import neighbor_accuracy
from iecl.parts.mlp import mlp
from iecl.views.pipeline import make_plain, make_views
from iecl.views.policies import POLICIES, ViewSpec

SEED, EPOCHS, BATCH, ENTROPY_WEIGHT = 0, 3, 100, 0.6
LOOK = {"size": 16, "mean": FACTS["shapes"].mean, "std": FACTS["shapes"].std}


def main() -> None:
    """Train and measure."""
    torch.manual_seed(SEED)
    source = open_source(DataSettings(name="shapes"), "test")  # the smaller split is enough here
    backbone = make_backbone("resnet10-w16", SEED)  # a narrow torchvision ResNet; any module will do
    projector = mlp(backbone.num_features, 256, 64)
    optimizer = torch.optim.AdamW([*backbone.parameters(), *projector.parameters()], lr=2e-3)
    block = iecl.attach_block(optimizer, image_size=16, budget=0.5, seed=SEED)  # it moves with every optimizer step

    def accuracy() -> float:
        backbone.eval()
        with torch.no_grad():
            features = backbone(make_plain(source.images, torch.full((len(source), 2), 32), **LOOK, share=1.0))
        backbone.train()
        return neighbor_accuracy(features, torch.from_numpy(source.labels)).item()

    before = accuracy()
    for epoch in range(EPOCHS):
        for batch in Loader(source, batch=BATCH, seed=SEED).epoch(epoch):
            views = make_views(batch, POLICIES["crop"], ViewSpec(), **LOOK, seed=SEED, epoch=epoch)
            query = block(views.global_crops[1])  # the block climbs the loss, within its budget
            z_anchor, z_query = projector(backbone(views.global_crops[0])), projector(backbone(query))
            contrast = nt_xent(z_anchor, z_query, temperature=0.2)
            rates = [coding_rate(normalize(z, dim=1)) for z in (z_anchor, z_query)]
            entropy = torch.stack(rates).mean() / z_anchor.shape[1] ** 0.5
            (contrast - ENTROPY_WEIGHT * entropy).backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"epoch {epoch + 1}: contrast {contrast.item():.3f}, entropy {entropy.item():.3f}")
    print(f"kNN {100 * before:.1f} % before, {100 * accuracy():.1f} % after")


if __name__ == "__main__":
    main()
