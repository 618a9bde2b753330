//! One device: a linear space, its extents, checksums, index, queue and media.
