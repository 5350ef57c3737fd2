"""What others have built for the same shapes; each package is imported only where it is asked."""
