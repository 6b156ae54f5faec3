"""One page about runs: what their directories say, what their networks see, in a file that needs nothing else.

`reading`, `curves` and `comparing` read files and never import torch; `seeing` and what it calls look at images. All of
it becomes one document of plain values, which `page` puts beside the scripts in `page/`, and `live` serves.
"""
