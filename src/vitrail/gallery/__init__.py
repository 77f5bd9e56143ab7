"""A searchable collection of images: their embeddings, labels of several levels and thumbnails, in one folder."""
