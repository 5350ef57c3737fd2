"""Recipe cards (hyperparameters of papers and toolkits), and their comparison."""
