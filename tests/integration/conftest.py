from replaced import products  # noqa: F401
