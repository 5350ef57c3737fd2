"""What Lightning's own callbacks and plugins do not do, or not right."""
