"""Recipe cards of papers and toolkits, and their comparison."""
