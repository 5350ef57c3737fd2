"""The commands translate, generate, fill and classify."""
