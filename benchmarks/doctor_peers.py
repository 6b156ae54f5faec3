"""What cleanvision and imagededup say of a folder, as JSON; run by `benchmarks.doctor` in their environment."""

import json
import logging
import resource
import sys
from importlib import metadata
from pathlib import Path


def seconds() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usage)


def cleanvision(folder: str) -> dict:
    from cleanvision import Imagelab

    began = seconds()
    lab = Imagelab(data_path=folder)
    lab.find_issues(n_jobs=1, verbose=False)
    return {"seconds": seconds() - began}


def cleanvision_pairs(folder: str) -> dict:
    from cleanvision import Imagelab

    lab = Imagelab(data_path=folder)
    lab.find_issues({"exact_duplicates": {}, "near_duplicates": {}}, n_jobs=1, verbose=False)
    pairs = set()
    for kind in ("exact_duplicates", "near_duplicates"):
        for group in lab.info[kind]["sets"]:
            names = sorted(Path(path).name for path in group)
            pairs |= {(a, b) for i, a in enumerate(names) for b in names[i + 1 :]}
    return {"pairs": sorted(pairs)}


def imagededup(folder: str) -> dict:
    from imagededup.methods import DHash, PHash

    made = {}
    for method in (PHash, DHash):
        finder = method(verbose=False)
        codes = finder.encode_images(folder, num_enc_workers=0)
        found = finder.find_duplicates(encoding_map=codes, max_distance_threshold=14, scores=True, num_dist_workers=0)
        pairs = {(*sorted((name, other)), int(distance)) for name, each in found.items() for other, distance in each}
        made[method.__name__] = sorted(pairs)
    return {"pairs": made}


def versions(folder: str) -> dict:
    return {name: metadata.version(name) for name in ("cleanvision", "imagededup", "imagehash", "pillow")}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    what = {
        "cleanvision": cleanvision,
        "cleanvision-pairs": cleanvision_pairs,
        "imagededup": imagededup,
        "versions": versions,
    }
    print(json.dumps(what[sys.argv[1]](sys.argv[2])))
