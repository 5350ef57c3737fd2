"""Recipe cards (files with hyperparameters of papers and toolkits), and their comparison."""
