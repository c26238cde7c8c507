//! Any bytes as what a server sends.

#[cfg(fuzzing)]
pub(crate) use super::rules::fuzzed::ledger;

/// What the servers of stores send is read, or it is an error.
///
/// The first byte of an input chooses what is read.
pub(crate) fn replies(bytes: &[u8]) {
    const READERS: [fn(&[u8]); 4] = [
        super::redis::fuzzed::answer,
        super::redis::fuzzed::slots,
        super::redis::fuzzed::stored_policy,
        super::postgres::fuzzed::message,
    ];
    if let Some((first, rest)) = bytes.split_first() {
        READERS[usize::from(*first) % READERS.len()](rest);
    }
}

#[cfg(test)]
mod tests {
    use crate::corpus::replay;

    #[test]
    fn what_servers_send_is_read_or_refused() {
        replay(
            include_str!("../../tests/integration/fuzzed/replies.txt"),
            super::replies,
        );
    }
}
