//! The names of things: clusters, devices, segments, versions, epochs.
//!
//! They live in the lowest crate that stores them; the protocol re-exports them. Every name is a plain
//! number, written for people (and in JSON, where half of the readers would round it) as fixed-width hexadecimal.

/// Number of a coded block, chunk or replica inside its segment. Never used twice within one segment.
pub type BlockIndex = u32;

/// A text that is not the hexadecimal form of a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {kind}: expected 1 to {digits} hexadecimal digits")]
pub struct ParseIdError {
    /// The rejected text.
    pub text: String,
    /// What was expected, in words.
    pub kind: &'static str,
    /// The most digits such a name has.
    pub digits: usize,
}

/// Makes a name: a plain number in records and on the wire, hexadecimal in text.
#[doc(hidden)]
#[macro_export]
macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $kind:literal, $digits:literal, $format:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                write!(f, $format, self.0)
            }
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match serializer.is_human_readable() {
                    true => serializer.collect_str(self),
                    false => self.0.serialize(serializer),
                }
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if !deserializer.is_human_readable() {
                    return <$inner>::deserialize(deserializer).map(Self);
                }
                let text = <::std::string::String as ::serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(::serde::de::Error::custom)
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::ids::ParseIdError;

            fn from_str(text: &str) -> Result<Self, $crate::ids::ParseIdError> {
                let error = || $crate::ids::ParseIdError { text: text.to_owned(), kind: $kind, digits: $digits };
                // `from_str_radix` would also take a sign.
                if text.is_empty() || text.len() > $digits || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(error());
                }
                <$inner>::from_str_radix(text, 16).map(Self).map_err(|_| error())
            }
        }
    };
}

id!(
    /// A cluster: drawn once when the cluster is made.
    ClusterId(u128), "cluster id", 32, "{:032x}"
);
id!(
    /// A device (one disk): drawn once when the device is formatted.
    DeviceId(u128), "device id", 32, "{:032x}"
);
id!(
    /// A segment, the unit of coding; unique in the cluster and never used again.
    SegmentId(u64), "segment id", 16, "{:016x}"
);
id!(
    /// The version of a segment's content at its creation; part of every checksum's tag.
    Version(u64), "version", 16, "{:016x}"
);
id!(
    /// The fencing number of a segment's layout: a device keeps the highest it has seen and refuses older.
    Epoch(u64), "epoch", 16, "{:016x}"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        let id = DeviceId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        assert_eq!(id.to_string(), "0123456789abcdef0011223344556677");
        assert_eq!(id.to_string().parse::<DeviceId>(), Ok(id));
        assert_eq!(SegmentId(0xab).to_string(), "00000000000000ab");
        assert_eq!("ab".parse::<SegmentId>(), Ok(SegmentId(0xab)));
    }

    /// A number of 64 bits or more is not the same number to every reader of JSON.
    #[test]
    fn json_has_text_and_records_have_numbers() {
        let id = DeviceId(0xab);
        let json = format!("\"{id}\"");
        assert_eq!(serde_json::to_string(&id).unwrap(), json);
        assert_eq!(serde_json::from_str::<DeviceId>(&json).unwrap(), id);
        assert!(serde_json::from_str::<DeviceId>("\"x\"").is_err());
        let record = postcard::to_stdvec(&id).unwrap();
        assert_eq!(record, postcard::to_stdvec(&0xab_u128).unwrap());
        assert_eq!(postcard::from_bytes::<DeviceId>(&record).unwrap(), id);
    }

    #[test]
    fn bad_text_is_refused() {
        for text in ["", "+1", "-1", "0x1", "g", "11111111111111111"] {
            assert!(text.parse::<Epoch>().is_err(), "{text}");
        }
    }
}
