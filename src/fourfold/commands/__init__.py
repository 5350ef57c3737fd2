"""What each command does. Light to import: heavy packages wait until a command runs."""
