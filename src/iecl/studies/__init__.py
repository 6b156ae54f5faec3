"""Studies: cells of training and measuring, run in processes of their own, and honest tables of them."""
