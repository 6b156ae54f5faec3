"""The table of methods: one file each, resolved by name when a run asks for it."""

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from iecl.brought import find, is_brought
from iecl.errors import UserError, did_you_mean
from iecl.registry import Entry, imported, is_import

if TYPE_CHECKING:
    from iecl.methods.contract import Method

METHODS: dict[str, Entry] = {
    "ie-cl": Entry("iecl.methods.ie_cl:IECL", "any other method, its host, behind an input block, with entropy terms"),
    "simclr": Entry("iecl.methods.simclr:SimCLR", "match two views of an image among all other views of the batch"),
    "moco-v2": Entry("iecl.methods.moco_v2:MoCoV2", "match a momentum copy's key among the batch or a queue of keys"),
    "moco-v3": Entry("iecl.methods.moco_v3:MoCoV3", "predict a momentum copy's key among the keys of a large batch"),
    "byol": Entry("iecl.methods.byol:BYOL", "predict a momentum copy's projection of the other view, no negatives"),
    "simsiam": Entry("iecl.methods.simsiam:SimSiam", "predict its own projection of the other view, detached"),
    "swav": Entry("iecl.methods.swav:SwAV", "predict from each view the balanced cluster assignment of another"),
    "nnclr": Entry("iecl.methods.nnclr:NNCLR", "contrast with the nearest past image instead of the view itself"),
    "all4one": Entry("iecl.methods.all4one:All4One", "contrast neighbors, a transformer's summary of them, features"),
    "matrix-ssl": Entry(
        "iecl.methods.matrix_ssl:MatrixSSL", "cross-entropies between covariance matrices of two encoders"
    ),
    "w-mse": Entry("iecl.methods.w_mse:WMSE", "whiten the embeddings, then only pull views together"),
    "deepcluster": Entry("iecl.methods.deepcluster:DeepCluster", "classify images into clusters that k-means found"),
    "deepcluster-v2": Entry(
        "iecl.methods.deepcluster_v2:DeepClusterV2", "predict clusters of the last epoch's projections"
    ),
    "minent": Entry("iecl.methods.minent:MinEnt", "move outputs to the other view's nearest one-hot vector"),
    "light-moco": Entry("iecl.methods.light_moco:LightMoCo", "MoCo with part of the target on the nearest negatives"),
    "s3oc": Entry("iecl.methods.s3oc:S3OC", "cluster centers as layers, hard assignments as targets"),
    "barlow-twins": Entry(
        "iecl.methods.barlow_twins:BarlowTwins", "make the cross-correlation of two views the identity"
    ),
    "vicreg": Entry("iecl.methods.vicreg:VICReg", "match views; keep features varied and uncorrelated"),
    "dino": Entry("iecl.methods.dino:DINO", "match the centered, sharpened output of its momentum copy"),
    "viewmaker": Entry(
        "iecl.methods.viewmaker:Viewmaker", "contrast views that a network makes as hard as its budget allows"
    ),
    "supervised": Entry("iecl.methods.supervised:Supervised", "cross-entropy with labels: the upper reference"),
    "random": Entry("iecl.methods.random:Random", "no training at all: the lower reference"),
}

WRAPPER = "ie-cl"
"""The method that is a block and terms around another one: its setting `host`, whose settings it takes."""
DEFAULT_HOST = "moco-v2"
ENTRY_POINTS = "iecl.methods"
"""The group under which other packages declare their methods."""


def declared_methods() -> dict[str, Entry]:
    """Methods of other packages that are installed; a name of ours stays ours."""
    found = entry_points(group=ENTRY_POINTS)
    return {
        point.name: Entry(point.value, f"from the package {point.dist.name if point.dist else point.module}")
        for point in found
        if point.name not in METHODS
    }


def check_name(name: object, kind: str, where: str) -> None:
    """Refuse a name that no method can have: not of the table, of another package, of a module, or an object's.

    Raises:
        UserError: there is no such method.
    """
    word = str(name)  # whatever a file says
    if word not in METHODS and not is_import(name) and not is_brought(word):
        declared = declared_methods()
        if word not in declared:
            raise UserError(f"no {kind} is called {name!r}", where=where, do=did_you_mean(word, [*METHODS, *declared]))


def load_method(name: str) -> "type[Method]":
    """The class of a method: ours, another package's, `package.module:Class`, or one that Python brought.

    Raises:
        UserError: it cannot be imported, or is no method.
    """
    if name in METHODS:
        found: type[Method] = METHODS[name].load()
        return found
    if is_brought(name):
        loaded = find(name, "method")
    else:
        declared = {} if is_import(name) else declared_methods()
        loaded = imported(declared[name].target if name in declared else name, "Class", "--method")
    from iecl.methods import contract

    if not (isinstance(loaded, type) and issubclass(loaded, contract.Method)):
        raise UserError(
            f"{name} is no method", where="--method", do="derive its class from iecl.methods.contract.Method"
        )
    if not issubclass(getattr(loaded, "Settings", object), contract.MethodSettings):
        do = "give the class an attribute Settings: a frozen dataclass derived from MethodSettings"
        raise UserError(f"{name} has no settings", where="--method", do=do)
    return loaded
