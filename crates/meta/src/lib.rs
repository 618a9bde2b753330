//! The metadata server: the metadata cores over redb, with group commit.
