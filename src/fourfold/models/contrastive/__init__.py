"""Models that embed images and texts in one space: CLIP and SigLIP."""
