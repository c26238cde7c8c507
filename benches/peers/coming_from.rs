//! Compiles the code of other limiters that the guide has.
#![doc = include_str!(concat!(env!("OUT_DIR"), "/coming_from.md"))]
