"""What `iecl doctor` does: one pass over a folder of images, and a table of checks on what it found."""
