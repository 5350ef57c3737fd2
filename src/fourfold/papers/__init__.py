"""The papers' published tables as data, and how each number is obtained here."""
