"""Recipe cards, the hyperparameters of papers and toolkits, and their comparison."""
