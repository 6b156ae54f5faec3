"""k-means and what it is given: same answer every time, known answers, limits."""

import logging

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn.functional import normalize

from iecl import counter
from iecl.errors import UserError
from iecl.parts import kmeans as module
from iecl.parts.kmeans import affordable, kmeans
from iecl.parts.pca import whitened


def draw(seed: int, rows: int = 60, dim: int = 4) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim))).float()


def blobs() -> tuple[Tensor, Tensor]:
    """Thirty rows around each of three far corners, mixed."""
    groups = torch.arange(90) % 3
    return 20 * torch.eye(3)[groups] + draw(0, 90, 3), groups


@pytest.mark.parametrize("spherical", [False, True])
def test_groups_that_lie_apart_are_found(spherical: bool) -> None:
    rows, groups = blobs()
    key = next(k for k in range(99) if len(set(groups[counter.permutation(k, 90)[:3]].tolist())) == 3)
    centroids, labels = kmeans(rows, 3, key=key, iterations=5, spherical=spherical)
    assert len({(label, group) for label, group in zip(labels.tolist(), groups.tolist(), strict=True)}) == 3
    means = torch.stack([(normalize(rows, dim=1) if spherical else rows)[labels == c].mean(0) for c in range(3)])
    assert torch.allclose(centroids, normalize(means, dim=1) if spherical else means, atol=1e-4)


def test_the_result_is_that_of_scikit_learn_from_the_same_start() -> None:
    rows = draw(1)
    start = rows[counter.permutation(7, len(rows))[:5]]
    theirs = KMeans(5, init=start.numpy(), n_init=1, max_iter=100, tol=0).fit(rows.numpy())
    centroids, labels = kmeans(rows, 5, key=7, iterations=100)
    assert labels.tolist() == theirs.labels_.tolist()
    assert np.allclose(centroids.numpy(), theirs.cluster_centers_, atol=1e-5)


def test_the_same_key_gives_the_same_bits_and_another_key_another_start() -> None:
    rows = draw(2)
    first, again, other = (kmeans(rows, 6, key=key, iterations=3) for key in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    kmeans(draw(3), 4, key=0, iterations=2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("spherical", [False, True])
def test_every_row_ends_at_its_nearest_centroid(spherical: bool) -> None:
    rows = draw(4)
    centroids, labels = kmeans(rows, 7, key=3, iterations=2, spherical=spherical)
    distances = torch.cdist(normalize(rows, dim=1) if spherical else rows, centroids)
    assert torch.equal(labels, distances.argmin(1))


@pytest.mark.parametrize("spherical", [False, True])
def test_a_cluster_without_rows_keeps_its_centroid(spherical: bool) -> None:
    rows = torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1]])  # of equal centroids only one can be the nearest
    centroids, labels = kmeans(rows, 3, key=0, iterations=4, spherical=spherical)
    assert centroids.isfinite().all()
    empty = set(range(3)) - set(labels.tolist())
    assert empty
    assert all(centroids[c].tolist() in rows.tolist() for c in empty)


@pytest.mark.parametrize("spherical", [False, True])
def test_the_size_of_a_chunk_does_not_matter(spherical: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = draw(5)
    whole = kmeans(rows, 5, key=0, iterations=4, spherical=spherical)
    monkeypatch.setattr(module, "CHUNK", 35)  # seven rows at a time
    parts = kmeans(rows, 5, key=0, iterations=4, spherical=spherical)
    assert torch.equal(whole[1], parts[1])
    assert torch.allclose(whole[0], parts[0], atol=1e-6)


def test_autocast_does_not_shorten_the_distances() -> None:
    rows = draw(6) + 100
    with torch.autocast("cpu", torch.bfloat16):
        inside = kmeans(rows, 5, key=0, iterations=3)
    assert torch.equal(inside[1], kmeans(rows, 5, key=0, iterations=3)[1])


def test_more_clusters_than_rows_are_refused() -> None:
    with pytest.raises(UserError, match=r"3 rows cannot make 4 clusters.*method.num_clusters"):
        kmeans(draw(7, rows=3), 4, key=0, iterations=1)


def test_clusters_are_lowered_to_half_the_images_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "iecl.parts"):
        assert affordable(10, samples=20) == 10
        assert caplog.text == ""
        assert affordable(3000, samples=1797) == 898
    assert "3000 clusters are too many for 1797 images: making 898" in caplog.text
    with pytest.raises(UserError, match="3 images cannot be clustered"):
        affordable(2, samples=3)


def test_whitened_components_vary_equally_before_rows_get_length_one() -> None:
    rows = draw(8, rows=500, dim=6) * torch.tensor([100.0, 30, 10, 3, 1, 0.3]) + 7
    made = whitened(rows, 4)
    assert made.shape == (500, 4)
    assert torch.allclose(made.norm(dim=1), torch.ones(500), atol=1e-5)
    exact = rows.double() - rows.double().mean(0)
    _, _, axes = torch.linalg.svd(exact, full_matrices=False)
    wanted = exact @ axes[:4].T
    wanted = normalize(wanted / wanted.std(0), dim=1)
    assert torch.allclose((made @ made.T).double(), wanted @ wanted.T, atol=1e-3)  # up to signs of the axes


def test_directions_without_variance_are_left_out_and_not_blown_up() -> None:
    rows = torch.cat([draw(9, dim=2), torch.full((60, 3), 5.0)], dim=1)
    assert whitened(rows, 5).shape == (60, 2)
    assert torch.equal(whitened(torch.ones(6, 3), 3), torch.zeros(6, 1))


def test_whitening_in_chunks_is_whitening(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = draw(10)
    whole = whitened(rows, 3)
    monkeypatch.setattr("iecl.parts.pca.CHUNK", 7)
    assert torch.allclose(whitened(rows, 3).abs(), whole.abs(), atol=1e-5)
