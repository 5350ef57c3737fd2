"""Image readers, transforms, and DataModules of the vision tasks."""
