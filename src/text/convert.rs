use super::error::ParseError;
use crate::policy::{Limit, Policy};
use crate::rate::Rate;

macro_rules! try_from_text {
    ($($value:ident: $($text:ty),*;)*) => {$($(
        /// Parses the text, as [`str::parse`] does.
        impl TryFrom<$text> for $value {
            type Error = ParseError;

            fn try_from(text: $text) -> Result<Self, ParseError> {
                text.parse()
            }
        }
    )*)*};
}

try_from_text! {
    Policy: &str, &String, String;
    Limit: &str, &String, String;
    Rate: &str, &String, String;
}
