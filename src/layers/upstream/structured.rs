//! Structured fields: lists and dictionaries of RFC 9651, section 4.2.
//!
//! `sfv` checks each line, so that a field is malformed here exactly if it is malformed for any other reader. The values are then
//! borrowed from the line. A function returns `None` for a malformed field, which must be ignored.

use http::HeaderValue;
use sfv::Parser;
use sfv::visitor::Ignored;

/// A value in a well-formed field, as its text. Each method returns `None` for a value of another type.
#[derive(Debug, Clone, Copy)]
pub(in crate::layers) struct Bare<'h>(&'h str);

impl<'h> Bare<'h> {
    /// A non-negative integer.
    pub(in crate::layers) fn count(self) -> Option<u64> {
        u64::try_from(self.0.parse::<i64>().ok()?).ok()
    }

    /// A string, as written between the quotes. Each string has exactly one such form, because a character that may be escaped
    /// must be.
    pub(in crate::layers) fn string(self) -> Option<&'h str> {
        self.0.strip_prefix('"')?.strip_suffix('"')
    }

    /// A byte sequence, in base64.
    pub(in crate::layers) fn bytes(self) -> Option<&'h str> {
        self.0.strip_prefix(':')?.strip_suffix(':')
    }
}

/// A well-formed member of a list or dictionary.
#[derive(Debug, Clone, Copy)]
pub(in crate::layers) struct Item<'h>(&'h str);

impl<'h> Item<'h> {
    pub(in crate::layers) fn value(&self) -> Bare<'h> {
        Bare(split(self.0, ';').next().unwrap_or_default())
    }

    /// The last parameter of this name.
    pub(in crate::layers) fn parameter(&self, name: &str) -> Option<Bare<'h>> {
        let parameters = split(self.0, ';').skip(1).map(str::trim_ascii_start);
        let named = parameters.filter_map(|parameter| match parameter.split_once('=') {
            Some((key, value)) => (key == name).then_some(Bare(value)),
            None => (parameter == name).then_some(Bare("?1")), // left out where it is true
        });
        named.last()
    }

    /// A parameter that is left out, or that `read` accepts. A value that `read` does not accept is malformed.
    pub(in crate::layers) fn optional<T>(
        &self,
        name: &str,
        read: impl Fn(Bare<'h>) -> Option<T>,
    ) -> Option<Option<T>> {
        match self.parameter(name) {
            None => Some(None),
            Some(value) => read(value).map(Some),
        }
    }
}

/// Reads the lines of a field by [`list`] or [`dictionary`]. Returns whether they have content. The field is malformed if a line
/// is, or if one of several lines is empty.
pub(in crate::layers) fn structured_lines<'h>(
    lines: impl Iterator<Item = &'h HeaderValue>,
    mut read: impl FnMut(&'h str) -> Option<()>,
) -> Option<bool> {
    let (mut full, mut empty) = (0, 0);
    for line in lines {
        let line = str::from_utf8(line.as_bytes()).ok()?.trim_ascii();
        if line.is_empty() {
            empty += 1;
        } else {
            full += 1;
            read(line)?;
        }
    }
    let is_well_formed = empty == 0 || full + empty == 1;
    is_well_formed.then_some(full > 0)
}

/// Reads one line of a list.
///
/// A string that begins in one line and ends in the next has no certain value (section 4.2), and is malformed here.
pub(in crate::layers) fn list<'h>(
    line: &'h str,
    mut found: impl FnMut(Item<'h>) -> Option<()>,
) -> Option<()> {
    Parser::new(line).parse_list_with_visitor(Ignored).ok()?;
    split(line, ',').try_for_each(|member| found(Item(member.trim_ascii())))
}

/// Reads one line of a dictionary. The last member of a name counts.
pub(in crate::layers) fn dictionary<'h>(
    line: &'h str,
    mut found: impl FnMut(&'h str, Item<'h>) -> Option<()>,
) -> Option<()> {
    Parser::new(line)
        .parse_dictionary_with_visitor(Ignored)
        .ok()?;
    split(line, ',').try_for_each(|member| {
        let member = member.trim_ascii();
        // A key without a value may have parameters.
        let (key, value) = member.split_at(member.find(['=', ';']).unwrap_or(member.len()));
        found(key, Item(value.strip_prefix('=').unwrap_or(value)))
    })
}

/// The parts of a well-formed text between separators that stand outside of strings and inner lists.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut previous = ' ';
    let (mut in_string, mut in_display_string, mut in_list) = (false, false, false);
    let mut is_escaped = false;
    text.split(move |char| {
        match char {
            _ if is_escaped => is_escaped = false,
            '\\' if in_string => is_escaped = true,
            '"' if in_display_string => in_display_string = false,
            '"' if previous == '%' && !in_string => in_display_string = true,
            '"' => in_string = !in_string,
            '(' if !in_string && !in_display_string => in_list = true,
            ')' if !in_string && !in_display_string => in_list = false,
            _ => {}
        }
        previous = char;
        char == separator && !in_string && !in_display_string && !in_list
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Members with separators and brackets inside of strings, display strings and inner lists.
    const MEMBERS: [&str; 8] = [
        "5",
        r#""a,\";(b""#,
        r#"")\\""#,
        r#""50%""#,
        r#"%"a,;(b""#,
        r#"%")\""#,
        r#"("a)" b;q=1)"#,
        r#"(%"a)" b;q=1)"#,
    ];

    proptest! {
        #![proptest_config(crate::replay::cases(256))]

        #[test]
        fn a_text_is_split_outside_of_strings_and_inner_lists(
            members in prop::collection::vec(prop::sample::select(&MEMBERS[..]), 1..5),
            separator in prop::sample::select(&[',', ';'][..]),
        ) {
            let text = members.join(&separator.to_string());
            prop_assert!(split(&text, separator).eq(members));
        }
    }
}
