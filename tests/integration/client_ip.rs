//! The address of the client, behind proxies and among forged elements.

use std::net::{IpAddr, Ipv4Addr};

use crate::common::counting::{LIVE, PEAK};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use tollgate::layers::{ClientIp, ClientIpError, ForwardedHeader, NoClientIp};

/// The expected result of a case, with the numbers of [`NoClientIp`].
#[derive(Debug, Clone, Copy)]
enum Expected {
    Key(&'static str),
    NoPeer,
    NoHeader,
    Malformed(usize),
    Hidden(usize),
    TooFew(usize),
}
use Expected::{Hidden, Key, Malformed, NoHeader, NoPeer, TooFew};

/// A case: its name, the lines of the header, and the expected result.
type Case = (&'static str, &'static [&'static [u8]], Expected);

const HEADERS: [ForwardedHeader; 2] = [ForwardedHeader::XForwardedFor, ForwardedHeader::Forwarded];
const PROXY: &str = "10.0.0.1";
const CLIENT: Expected = Key("198.51.100.9");

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn behind_networks() -> ClientIp {
    ClientIp::behind_networks(["10.0.0.0/8", "192.0.2.7", "fd00:4::/64"]).unwrap()
}

fn name(header: ForwardedHeader) -> HeaderName {
    header.to_string().parse().unwrap()
}

fn headers<T: AsRef<[u8]>>(header: ForwardedHeader, lines: &[T]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(
            name(header),
            HeaderValue::from_bytes(line.as_ref()).unwrap(),
        );
    }
    headers
}

/// Checks the answers for all cases, and that they allocate nothing.
#[track_caller]
fn check(
    client_ip: &ClientIp,
    header: ForwardedHeader,
    hops: u8,
    peer: Option<&str>,
    cases: &[Case],
) {
    let client_ip = client_ip.clone().header(header);
    let wrong = cases.iter().filter_map(|(name, lines, expected)| {
        let expected = match *expected {
            Key(key) => Ok(ip(key)),
            NoPeer => Err(NoClientIp::NoPeer),
            NoHeader => Err(NoClientIp::NoHeader { header }),
            Malformed(from_right) => Err(NoClientIp::Malformed { header, from_right }),
            Hidden(from_right) => Err(NoClientIp::Hidden { header, from_right }),
            TooFew(found) => Err(NoClientIp::TooFewHops {
                header,
                hops,
                found,
            }),
        };
        let (peer, headers) = (peer.map(ip), headers(header, lines));
        PEAK.set(LIVE.get());
        let found = client_ip.find(peer, &headers);
        assert_eq!(PEAK.get(), LIVE.get(), "{name}: something was allocated");
        (found != expected).then(|| format!("{name}: {found:?} instead of {expected:?}"))
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Behind trusted networks, read from `X-Forwarded-For`.
#[track_caller]
fn check_list(cases: &[Case]) {
    check(
        &behind_networks(),
        ForwardedHeader::XForwardedFor,
        0,
        Some(PROXY),
        cases,
    );
}

/// Behind trusted networks, read from `Forwarded`.
#[track_caller]
fn check_forwarded(cases: &[Case]) {
    check(
        &behind_networks(),
        ForwardedHeader::Forwarded,
        0,
        Some(PROXY),
        cases,
    );
}

#[test]
fn the_client_is_the_first_address_from_the_right_that_is_not_trusted() {
    check_list(&[
        ("one proxy", &[b"198.51.100.9"], CLIENT),
        ("two proxies", &[b"198.51.100.9, 10.0.0.2"], CLIENT),
        (
            "three proxies of different networks",
            &[b"198.51.100.9, fd00:4::5, 192.0.2.7, 10.0.0.2"],
            CLIENT,
        ),
        ("a forged element", &[b"203.0.113.66, 198.51.100.9"], CLIENT),
        (
            "a forged element that is trusted",
            &[b"10.9.9.9, 198.51.100.9"],
            CLIENT,
        ),
        (
            "a forged element behind two proxies",
            &[b"203.0.113.66, 198.51.100.9, 10.0.0.2"],
            CLIENT,
        ),
        (
            "the address beside a trusted one",
            &[b"203.0.113.66, 192.0.2.8"],
            Key("192.0.2.8"),
        ),
        (
            "the address beside a trusted network",
            &[b"203.0.113.66, 11.0.0.0"],
            Key("11.0.0.0"),
        ),
        (
            "the last address of a trusted network",
            &[b"198.51.100.9, 10.255.255.255"],
            CLIENT,
        ),
        (
            "the network beside a trusted one",
            &[b"203.0.113.66, fd00:4:0:1::5"],
            Key("fd00:4::"),
        ),
        (
            "only trusted addresses",
            &[b"10.0.0.4, 10.0.0.3, 10.0.0.2"],
            Key("10.0.0.4"),
        ),
        ("no header", &[], NoHeader),
    ]);
}

#[test]
fn only_a_trusted_peer_has_its_header_read() {
    let cases: &[Case] = &[
        ("a forged header", &[b"203.0.113.66"], CLIENT),
        (
            "a forged chain of proxies",
            &[b"203.0.113.66, 10.0.0.2"],
            CLIENT,
        ),
        ("a malformed header", &[b"nonsense"], CLIENT),
        ("no header", &[], CLIENT),
    ];
    for header in HEADERS {
        check(&behind_networks(), header, 0, Some("198.51.100.9"), cases);
        check(
            &behind_networks(),
            header,
            0,
            Some("::ffff:198.51.100.9"),
            cases,
        );
        check(&ClientIp::peer(), header, 0, Some("198.51.100.9"), cases);
    }
    let cases: &[Case] = &[
        ("a header", &[b"198.51.100.9"], NoPeer),
        ("no header", &[], NoPeer),
    ];
    check(
        &behind_networks(),
        ForwardedHeader::XForwardedFor,
        0,
        None,
        cases,
    );
    check(
        &ClientIp::peer(),
        ForwardedHeader::XForwardedFor,
        0,
        None,
        cases,
    );
}

#[test]
fn several_lines_are_one_list_in_their_order() {
    let cases: &[Case] = &[
        (
            "a forged line before",
            &[b"203.0.113.66", b"198.51.100.9"],
            CLIENT,
        ),
        (
            "forged lines before",
            &[
                b"203.0.113.66, 203.0.113.67",
                b"",
                b"203.0.113.68",
                b"198.51.100.9",
            ],
            CLIENT,
        ),
        (
            "each proxy has a line",
            &[b"203.0.113.66", b"198.51.100.9", b"10.0.0.3", b"10.0.0.2"],
            CLIENT,
        ),
        (
            "lists in lines",
            &[b"203.0.113.66, 198.51.100.9", b"10.0.0.3, 10.0.0.2"],
            CLIENT,
        ),
        ("a malformed line before", &[b"\"", b"198.51.100.9"], CLIENT),
        (
            "a malformed line among those of proxies",
            &[b"203.0.113.66", b"nonsense", b"10.0.0.2"],
            Malformed(2),
        ),
        (
            "only trusted lines",
            &[b"10.0.0.4, 10.0.0.3", b"10.0.0.2"],
            Key("10.0.0.4"),
        ),
    ];
    check_list(cases);
}

#[test]
fn an_element_that_is_no_address_stops_the_search() {
    check_list(&[
        ("nonsense", &[b"203.0.113.66, nonsense"], Malformed(1)),
        (
            "nonsense behind a proxy",
            &[b"203.0.113.66, nonsense, 10.0.0.2"],
            Malformed(2),
        ),
        (
            "nonsense on the left of the client",
            &[b"nonsense, 198.51.100.9"],
            CLIENT,
        ),
        ("unknown", &[b"203.0.113.66, unknown"], Hidden(1)),
        (
            "unknown behind a proxy",
            &[b"203.0.113.66, unknown, 10.0.0.2"],
            Hidden(2),
        ),
        (
            "unknown in capitals",
            &[b"203.0.113.66, UnKnown"],
            Hidden(1),
        ),
        (
            "unknown on the left of the client",
            &[b"unknown, 198.51.100.9"],
            CLIENT,
        ),
        (
            "an obfuscated identifier",
            &[b"203.0.113.66, _gazonk"],
            Hidden(1),
        ),
        ("an empty header", &[b""], Malformed(1)),
        ("a blank header", &[b" \t "], Malformed(1)),
        ("only a comma", &[b","], Malformed(1)),
        (
            "an empty element at the end",
            &[b"203.0.113.66,"],
            Malformed(1),
        ),
        (
            "an empty element at the start",
            &[b", 198.51.100.9"],
            CLIENT,
        ),
        (
            "an empty element behind a proxy",
            &[b"203.0.113.66,, 10.0.0.2"],
            Malformed(2),
        ),
        (
            "an empty line at the end",
            &[b"203.0.113.66", b""],
            Malformed(1),
        ),
        (
            "an empty line behind a proxy",
            &[b"203.0.113.66", b" ", b"10.0.0.2"],
            Malformed(2),
        ),
        (
            "separated by a space",
            &[b"203.0.113.66 198.51.100.9"],
            Malformed(1),
        ),
        (
            "separated by a semicolon",
            &[b"203.0.113.66;198.51.100.9"],
            Malformed(1),
        ),
        (
            "non-ASCII letters",
            &[b"203.0.113.66, 198.51.100.\xef\xbc\x99"],
            Malformed(1),
        ),
        (
            "bytes that are no UTF-8",
            &[b"203.0.113.66, \xff"],
            Malformed(1),
        ),
        (
            "bytes that are no UTF-8 on the left",
            &[b"\xff\xfe, 198.51.100.9"],
            CLIENT,
        ),
        ("a name", &[b"203.0.113.66, localhost"], Malformed(1)),
        (
            "a Unix socket of nginx",
            &[b"203.0.113.66, unix:"],
            Malformed(1),
        ),
        (
            "a URL",
            &[b"203.0.113.66, http://198.51.100.9"],
            Malformed(1),
        ),
        (
            "a quoted address",
            &[b"203.0.113.66, \"198.51.100.9\""],
            Malformed(1),
        ),
        (
            "a network",
            &[b"203.0.113.66, 198.51.100.9/32"],
            Malformed(1),
        ),
        (
            "an element of the other header",
            &[b"203.0.113.66, for=198.51.100.9"],
            Malformed(1),
        ),
    ]);
}

#[test]
fn ipv4_is_read_with_a_port_and_only_in_dotted_decimal_form() {
    check_list(&[
        (
            "spaces and tabs",
            &[b"203.0.113.66 ,\t 198.51.100.9 \t, 10.0.0.2 "],
            CLIENT,
        ),
        (
            "no spaces",
            &[b"203.0.113.66,198.51.100.9,10.0.0.2"],
            CLIENT,
        ),
        ("a port", &[b"198.51.100.9:4711"], CLIENT),
        (
            "the port of a proxy",
            &[b"198.51.100.9:4711, 10.0.0.2:80"],
            CLIENT,
        ),
        ("an obfuscated port", &[b"198.51.100.9:_gazonk"], CLIENT),
        ("an empty port", &[b"198.51.100.9:"], Malformed(1)),
        (
            "an empty obfuscated port",
            &[b"198.51.100.9:_"],
            Malformed(1),
        ),
        (
            "a port of six digits",
            &[b"198.51.100.9:000080"],
            Malformed(1),
        ),
        ("a port with a sign", &[b"198.51.100.9:+80"], Malformed(1)),
        ("a port with letters", &[b"198.51.100.9:80a"], Malformed(1)),
        ("two ports", &[b"198.51.100.9:80:80"], Malformed(1)),
        ("a zone", &[b"198.51.100.9%eth0"], Malformed(1)),
        (
            "a zero in front, which some read as octal",
            &[b"198.051.100.9"],
            Malformed(1),
        ),
        ("three parts", &[b"198.51.25609"], Malformed(1)),
        ("one number", &[b"3325256713"], Malformed(1)),
        ("hexadecimal", &[b"0xc6.0x33.0x64.0x9"], Malformed(1)),
        ("a part above 255", &[b"198.51.100.256"], Malformed(1)),
        ("a dot at the end", &[b"198.51.100.9."], Malformed(1)),
        ("a space inside", &[b"198.51. 100.9"], Malformed(1)),
    ]);
}

#[test]
fn ipv6_is_read_in_every_form_and_grouped() {
    let key = Key("2001:db8:1:200::");
    check_list(&[
        ("plain", &[b"2001:db8:1:2ff:4:5:6:7"], key),
        (
            "the first address of its network",
            &[b"2001:db8:1:200::"],
            key,
        ),
        (
            "the last address of its network",
            &[b"2001:db8:1:2ff:ffff:ffff:ffff:ffff"],
            key,
        ),
        (
            "the next network",
            &[b"2001:db8:1:300::"],
            Key("2001:db8:1:300::"),
        ),
        ("in capitals", &[b"2001:DB8:1:2FF::ABCD"], key),
        (
            "with all zeros",
            &[b"2001:0db8:0001:02ff:0000:0000:0000:0001"],
            key,
        ),
        ("ends as IPv4 does", &[b"2001:db8:1:2ff::198.51.100.9"], key),
        ("brackets", &[b"[2001:db8:1:2ff::1]"], key),
        ("brackets and a port", &[b"[2001:db8:1:2ff::1]:4711"], key),
        (
            "brackets and an obfuscated port",
            &[b"[2001:db8:1:2ff::1]:_gazonk"],
            key,
        ),
        (
            "brackets of a proxy",
            &[b"203.0.113.66, [2001:db8:1:2ff::1]:4711, [fd00:4::7]:80"],
            key,
        ),
        ("a zone", &[b"fe80::1%eth0"], Key("fe80::")),
        (
            "a zone in brackets",
            &[b"[fe80::1%25eth0]:80"],
            Key("fe80::"),
        ),
        (
            "the zone of a proxy",
            &[b"2001:db8:1:2ff::1, fd00:4::7%3"],
            key,
        ),
        ("an empty zone", &[b"fe80::1%"], Malformed(1)),
        ("two zones", &[b"fe80::1%a%b"], Malformed(1)),
        (
            "a bracket that is not closed",
            &[b"[2001:db8::1"],
            Malformed(1),
        ),
        (
            "a bracket that is not opened",
            &[b"2001:db8::1]"],
            Malformed(1),
        ),
        ("empty brackets", &[b"[]"], Malformed(1)),
        ("IPv4 in brackets", &[b"[198.51.100.9]"], Malformed(1)),
        (
            "text behind the brackets",
            &[b"[2001:db8::1]x"],
            Malformed(1),
        ),
        (
            "digits behind the brackets",
            &[b"[2001:db8::1]80"],
            Malformed(1),
        ),
        (
            "an empty port behind the brackets",
            &[b"[2001:db8::1]:"],
            Malformed(1),
        ),
        (
            "a zone behind the brackets",
            &[b"[fe80::1]%eth0"],
            Malformed(1),
        ),
        ("nine groups", &[b"1:2:3:4:5:6:7:8:9"], Malformed(1)),
        ("two gaps", &[b"2001::1::2"], Malformed(1)),
        ("five digits in a group", &[b"2001:0db80::1"], Malformed(1)),
        ("the loopback address", &[b"::1"], Key("::")),
        ("the unspecified address", &[b"::"], Key("::")),
    ]);
}

#[test]
fn a_mapped_address_is_the_ipv4_address_everywhere() {
    let cases: &[Case] = &[
        ("dotted", &[b"::ffff:198.51.100.9"], CLIENT),
        ("hexadecimal", &[b"::ffff:c633:6409"], CLIENT),
        ("in full", &[b"0:0:0:0:0:FFFF:C633:6409"], CLIENT),
        (
            "in full and dotted",
            &[b"0000:0000:0000:0000:0000:ffff:198.51.100.9"],
            CLIENT,
        ),
        (
            "brackets and a port",
            &[b"[::ffff:198.51.100.9]:80"],
            CLIENT,
        ),
        ("with a zone", &[b"::ffff:198.51.100.9%eth0"], CLIENT),
        (
            "a trusted network, dotted",
            &[b"198.51.100.9, ::ffff:10.0.0.2"],
            CLIENT,
        ),
        (
            "a trusted network, hexadecimal",
            &[b"198.51.100.9, [::ffff:a00:2]:80"],
            CLIENT,
        ),
        (
            "a trusted address",
            &[b"198.51.100.9, ::ffff:c000:207"],
            CLIENT,
        ),
        (
            "only trusted addresses",
            &[b"::ffff:10.0.0.4, 10.0.0.2"],
            Key("10.0.0.4"),
        ),
    ];
    for peer in [PROXY, "::ffff:10.0.0.1", "::ffff:a00:1", "fd00:4::1"] {
        check(
            &behind_networks(),
            ForwardedHeader::XForwardedFor,
            0,
            Some(peer),
            cases,
        );
    }
    let mapped =
        ClientIp::behind_networks(["::ffff:10.0.0.0/104", "::ffff:c000:207", "fd00:4::/64"])
            .unwrap();
    check(
        &mapped,
        ForwardedHeader::XForwardedFor,
        0,
        Some(PROXY),
        cases,
    );
    assert_eq!(mapped, behind_networks());
}

#[test]
fn other_addresses_with_ipv4_in_them_are_ipv6_and_not_trusted() {
    check_list(&[
        (
            "NAT64",
            &[b"198.51.100.9, 64:ff9b::10.0.0.2"],
            Key("64:ff9b::"),
        ),
        (
            "6to4",
            &[b"198.51.100.9, 2002:a00:2:ffff::1"],
            Key("2002:a00:2:ff00::"),
        ),
        ("IPv4-compatible", &[b"198.51.100.9, ::10.0.0.2"], Key("::")),
        (
            "IPv4-translated",
            &[b"198.51.100.9, ::ffff:0:10.0.0.2"],
            Key("::"),
        ),
        (
            "one bit beside a mapped one",
            &[b"198.51.100.9, ::fffe:10.0.0.2"],
            Key("::"),
        ),
    ]);
}

#[test]
fn forwarded_is_read_with_its_quotes_and_other_parameters() {
    let ipv6 = Key("2001:db8:1:200::");
    check_forwarded(&[
        ("a token", &[b"for=198.51.100.9"], CLIENT),
        ("quoted", &[br#"for="198.51.100.9""#], CLIENT),
        (
            "quoted with a port",
            &[br#"for="198.51.100.9:4711""#],
            CLIENT,
        ),
        (
            "quoted with an obfuscated port",
            &[br#"for="198.51.100.9:_p""#],
            CLIENT,
        ),
        ("IPv6", &[br#"for="[2001:db8:1:2ff::1]""#], ipv6),
        (
            "IPv6 with a port",
            &[br#"for="[2001:db8:1:2ff::1]:4711""#],
            ipv6,
        ),
        (
            "IPv6 of a proxy that does not quote it",
            &[b"for=[2001:db8:1:2ff::1]:4711"],
            ipv6,
        ),
        (
            "a mapped address",
            &[br#"for="[::ffff:c633:6409]""#],
            CLIENT,
        ),
        ("in capitals", &[b"FOR=198.51.100.9"], CLIENT),
        (
            "the first of several parameters",
            &[b"for=198.51.100.9;proto=https;by=10.0.0.1"],
            CLIENT,
        ),
        (
            "the last of several parameters",
            &[br#"host="example.org:8080";proto=https;for=198.51.100.9"#],
            CLIENT,
        ),
        (
            "spaces around semicolons",
            &[b"proto=http ; for=198.51.100.9\t; by=10.0.0.1"],
            CLIENT,
        ),
        ("empty parameters", &[b";;for=198.51.100.9;"], CLIENT),
        (
            "an unknown parameter with the end of the name",
            &[b"xfor=203.0.113.66;for=198.51.100.9"],
            CLIENT,
        ),
        (
            "two proxies",
            &[b"for=203.0.113.66, for=198.51.100.9;proto=https, for=10.0.0.2"],
            CLIENT,
        ),
        (
            "several lines",
            &[
                b"for=203.0.113.66",
                b"for=198.51.100.9",
                br#"for="[fd00:4::7]:80";by=_a"#,
            ],
            CLIENT,
        ),
        (
            "a comma in quotes",
            &[br#"for=198.51.100.9;x="a, for=203.0.113.66""#],
            CLIENT,
        ),
        (
            "a semicolon in quotes",
            &[br#"for=198.51.100.9;x="a;for=203.0.113.66""#],
            CLIENT,
        ),
        (
            "an escaped quote",
            &[br#"for=198.51.100.9;x="a\", for=203.0.113.66;y=\"b""#],
            CLIENT,
        ),
        (
            "an escaped backslash at the end",
            &[br#"for=198.51.100.9;x="a\\", for=10.0.0.2"#],
            CLIENT,
        ),
        (
            "an escaped backslash and an escaped quote",
            &[br#"for=198.51.100.9;x="\\\"", for=10.0.0.2"#],
            CLIENT,
        ),
        (
            "an empty string",
            &[br#"for=198.51.100.9;x="";y="", for=10.0.0.2;z="""#],
            CLIENT,
        ),
        (
            "only trusted addresses",
            &[b"for=10.0.0.3, for=10.0.0.2"],
            Key("10.0.0.3"),
        ),
        ("no header", &[], NoHeader),
    ]);
}

#[test]
fn a_quote_sent_by_the_client_does_not_change_the_elements_on_its_right() {
    check_forwarded(&[
        (
            "an unmatched quote",
            &[br#"for=203.0.113.66;by=", for=198.51.100.9"#],
            CLIENT,
        ),
        (
            "an unmatched quote before a quoted address",
            &[br#"for=203.0.113.66;by=", for="198.51.100.9""#],
            CLIENT,
        ),
        (
            "a quote that another line would close",
            &[br#"for=203.0.113.66;by="a"#, br#"b", for=198.51.100.9"#],
            CLIENT,
        ),
        (
            "a quote across lines",
            &[
                br#"for=203.0.113.66;by=""#,
                br#"for="198.51.100.9";by="10.0.0.1:80""#,
            ],
            CLIENT,
        ),
        (
            "a backslash at the end",
            &[br#"for=203.0.113.66;by="\, for="198.51.100.9""#],
            CLIENT,
        ),
        ("only a quote", &[br#"", for="198.51.100.9""#], CLIENT),
        (
            "quotes without order",
            &[br#""""\"",";=";="",for="198.51.100.9:80";by="10.0.0.1", for=10.0.0.2"#],
            CLIENT,
        ),
        (
            "an unmatched quote beside a trusted one",
            &[br#"for=203.0.113.66;by=", for="10.0.0.2""#],
            Malformed(2),
        ),
        (
            "an unmatched quote in the line before",
            &[br#"for=203.0.113.66;by="a"#, b"for=10.0.0.2"],
            Malformed(2),
        ),
        (
            "invented elements",
            &[br#"for=203.0.113.66, for=10.0.0.9;by=", for=198.51.100.9"#],
            CLIENT,
        ),
    ]);
}

/// A proxy copies the client's header `Host` into quotes, and does not escape the quotes in it.
#[test]
fn quotes_that_a_proxy_did_not_escape_stop_the_search() {
    check_forwarded(&[
        (
            "a quote at the end",
            &[br#"for=203.0.113.66;x=", for=198.51.100.9;host="a"""#],
            Malformed(1),
        ),
        (
            "a quote at the start",
            &[br#"for=203.0.113.66;x=", for=198.51.100.9;host=""a""#],
            Malformed(1),
        ),
        (
            "a quote in the middle",
            &[br#"for=203.0.113.66;x=", for=198.51.100.9;host="a"b""#],
            Malformed(1),
        ),
        (
            "a quote behind =",
            &[br#"for=203.0.113.66;x=", for=198.51.100.9;host="a="b""#],
            Malformed(1),
        ),
        (
            "a backslash at the end",
            &[br#"for=203.0.113.66;x=", for=198.51.100.9;host="a\""#],
            Malformed(1),
        ),
        (
            "a second address",
            &[br#"for=198.51.100.9;host="a";for="203.0.113.66""#],
            Malformed(1),
        ),
    ]);
}

#[test]
fn an_element_of_forwarded_without_an_address_stops_the_search() {
    check_forwarded(&[
        ("unknown", &[b"for=203.0.113.66, for=unknown"], Hidden(1)),
        (
            "unknown, quoted and with a port",
            &[br#"for=203.0.113.66, for="Unknown:80", for=10.0.0.2"#],
            Hidden(2),
        ),
        (
            "an obfuscated identifier",
            &[b"for=203.0.113.66, for=_gazonk"],
            Hidden(1),
        ),
        (
            "an obfuscated identifier, quoted and with a port",
            &[br#"for=203.0.113.66, for="_gazonk:_p""#],
            Hidden(1),
        ),
        (
            "no for",
            &[b"for=203.0.113.66, proto=https;by=10.0.0.1"],
            Hidden(1),
        ),
        ("an empty header", &[b""], Hidden(1)),
        (
            "an empty element",
            &[b"for=203.0.113.66, , for=10.0.0.2"],
            Hidden(2),
        ),
        (
            "an empty element at the end",
            &[b"for=203.0.113.66,"],
            Hidden(1),
        ),
        ("an empty line", &[b"for=203.0.113.66", b""], Hidden(1)),
        (
            "an empty address",
            &[b"for=203.0.113.66, for="],
            Malformed(1),
        ),
        (
            "an empty quoted address",
            &[br#"for=203.0.113.66, for="""#],
            Malformed(1),
        ),
        (
            "only an address",
            &[b"for=203.0.113.66, 198.51.100.9"],
            Malformed(1),
        ),
        (
            "a colon in place of =",
            &[b"for=203.0.113.66, for: 198.51.100.9"],
            Malformed(1),
        ),
        (
            "a space before =",
            &[b"for=203.0.113.66, for =198.51.100.9"],
            Hidden(1),
        ),
        (
            "a space behind =",
            &[b"for=203.0.113.66, for= 198.51.100.9"],
            Malformed(1),
        ),
        (
            "spaces in quotes",
            &[br#"for=203.0.113.66, for=" 198.51.100.9 ""#],
            Malformed(1),
        ),
        (
            "single quotes",
            &[b"for=203.0.113.66, for='198.51.100.9'"],
            Malformed(1),
        ),
        (
            "an escaped digit",
            &[br#"for=203.0.113.66, for="\198.51.100.9""#],
            Malformed(1),
        ),
        (
            "text behind the quotes",
            &[br#"for=203.0.113.66, for="198.51.100.9"x"#],
            Malformed(1),
        ),
        (
            "a quote that is not closed",
            &[br#"for=203.0.113.66, for="198.51.100.9"#],
            Malformed(1),
        ),
        (
            "a quote that is not opened",
            &[br#"for=203.0.113.66, for=198.51.100.9""#],
            Malformed(1),
        ),
        (
            "two addresses",
            &[b"for=203.0.113.66;for=198.51.100.9"],
            Malformed(1),
        ),
        (
            "two addresses, one of them unknown",
            &[b"for=203.0.113.66;for=unknown"],
            Malformed(1),
        ),
        (
            "bytes that are no UTF-8",
            &[b"for=203.0.113.66, for=\xff"],
            Malformed(1),
        ),
    ]);
}

#[test]
fn a_number_of_hops_counts_elements_from_the_right() {
    let hops = |hops| ClientIp::behind_hops(hops).unwrap();
    let list = |count, cases: &[Case]| {
        check(
            &hops(count),
            ForwardedHeader::XForwardedFor,
            count,
            None,
            cases,
        );
        check(
            &hops(count),
            ForwardedHeader::XForwardedFor,
            count,
            Some("203.0.113.66"),
            cases,
        );
    };
    list(
        1,
        &[
            ("the client alone", &[b"198.51.100.9"], CLIENT),
            (
                "a forged element",
                &[b"203.0.113.66, 198.51.100.9:4711"],
                CLIENT,
            ),
            ("a forged line", &[b"203.0.113.66", b"198.51.100.9"], CLIENT),
            (
                "IPv6",
                &[b"[2001:db8:1:2ff::1]:80"],
                Key("2001:db8:1:200::"),
            ),
            ("a mapped address", &[b"::ffff:c633:6409"], CLIENT),
            ("nonsense", &[b"203.0.113.66, nonsense"], Malformed(1)),
            ("unknown", &[b"203.0.113.66, unknown"], Hidden(1)),
            ("an empty element", &[b"203.0.113.66,"], Malformed(1)),
            ("no header", &[], NoHeader),
        ],
    );
    list(
        3,
        &[
            (
                "exactly as many",
                &[b"198.51.100.9, 10.0.0.3, 10.0.0.2"],
                CLIENT,
            ),
            (
                "more, in lines",
                &[b"203.0.113.66, 198.51.100.9", b"10.0.0.3", b"10.0.0.2"],
                CLIENT,
            ),
            (
                "proxies that are no addresses",
                &[b"203.0.113.66, 198.51.100.9, unix:, unknown"],
                CLIENT,
            ),
            (
                "an empty element has its place",
                &[b"203.0.113.66, , 10.0.0.3, 10.0.0.2"],
                Malformed(3),
            ),
            ("two too few", &[b"203.0.113.66"], TooFew(1)),
            ("one too few", &[b"203.0.113.66, 10.0.0.2"], TooFew(2)),
            (
                "one too few, in lines",
                &[b"203.0.113.66", b"10.0.0.2"],
                TooFew(2),
            ),
            ("an empty header", &[b""], TooFew(1)),
            ("no header", &[], NoHeader),
        ],
    );
    list(255, &[("one", &[b"203.0.113.66"], TooFew(1))]);
    check(
        &hops(2),
        ForwardedHeader::Forwarded,
        2,
        None,
        &[
            (
                "quoted",
                &[br#"for=203.0.113.66, for="198.51.100.9";x=",", for="10.0.0.2:80""#],
                CLIENT,
            ),
            (
                "an unmatched quote",
                &[br#"for=203.0.113.66;x=", for="198.51.100.9", for=_proxy"#],
                CLIENT,
            ),
            (
                "an unmatched quote of the last proxy",
                &[br#"for=203.0.113.66, for=198.51.100.9, for=10.0.0.2;x=""#],
                Malformed(1),
            ),
            (
                "quotes that are no value",
                &[br#"for=203.0.113.66, for=198.51.100.9;host="a", """#],
                Malformed(1),
            ),
            (
                "an unmatched quote before it",
                &[br#"for=203.0.113.66, for=198.51.100.9;x=", for=10.0.0.2"#],
                Malformed(2),
            ),
            ("one too few", &[br#"for=203.0.113.66;x="a,b""#], TooFew(1)),
        ],
    );
}

#[test]
fn only_the_header_that_was_chosen_is_read() {
    let both = |list: &[&str], forwarded: &[&str]| {
        let mut both = headers(ForwardedHeader::XForwardedFor, list);
        both.extend(headers(ForwardedHeader::Forwarded, forwarded));
        both.insert("x-real-ip", HeaderValue::from_static("203.0.113.66"));
        both
    };
    for client_ip in [behind_networks(), ClientIp::behind_hops(1).unwrap()] {
        let find = |client_ip: &ClientIp, headers| client_ip.find(Some(ip(PROXY)), &headers);
        let forged = ["for=203.0.113.66"];
        assert_eq!(
            find(&client_ip, both(&["198.51.100.9"], &forged)),
            Ok(ip("198.51.100.9"))
        );
        let header = ForwardedHeader::XForwardedFor;
        assert_eq!(
            find(&client_ip, both(&[], &forged)),
            Err(NoClientIp::NoHeader { header })
        );
        let header = ForwardedHeader::Forwarded;
        let client_ip = client_ip.header(header);
        assert_eq!(
            find(&client_ip, both(&["203.0.113.66"], &["for=198.51.100.9"])),
            Ok(ip("198.51.100.9"))
        );
        assert_eq!(
            find(&client_ip, both(&["203.0.113.66"], &[])),
            Err(NoClientIp::NoHeader { header })
        );
    }
}

#[test]
fn prefixes_group_addresses_into_clients() {
    let key =
        |client_ip: ClientIp, peer| client_ip.find(Some(ip(peer)), &HeaderMap::new()).unwrap();
    let (peer, ipv6) = (ClientIp::peer, |prefix| {
        ClientIp::peer().ipv6_prefix(prefix).unwrap()
    });
    let address = "2001:db8:1234:5678:9abc:def0:1234:5678";
    assert_eq!(key(peer(), address), ip("2001:db8:1234:5600::"));
    assert_eq!(key(ipv6(1), "ffff::1"), ip("8000::"));
    assert_eq!(key(ipv6(48), address), ip("2001:db8:1234::"));
    assert_eq!(key(ipv6(64), address), ip("2001:db8:1234:5678::"));
    assert_eq!(key(ipv6(128), address), ip(address));
    assert_eq!(key(ipv6(1), "::ffff:198.51.100.9"), ip("198.51.100.9"));
    let ipv4 = |prefix| ClientIp::peer().ipv4_prefix(prefix).unwrap();
    assert_eq!(key(ipv4(24), "198.51.100.9"), ip("198.51.100.0"));
    assert_eq!(key(ipv4(24), "::ffff:c633:6409"), ip("198.51.100.0"));
    assert_eq!(key(ipv4(1), "198.51.100.9"), ip("128.0.0.0"));
    assert_eq!(key(ipv4(24), address), ip("2001:db8:1234:5600::"));
}

#[test]
fn prefixes_out_of_range_are_refused() {
    for (prefix, max) in [(0, 128), (129, 128), (255, 128)] {
        assert_eq!(
            ClientIp::peer().ipv6_prefix(prefix),
            Err(ClientIpError::PrefixOutOfRange { prefix, max })
        );
    }
    for (prefix, max) in [(0, 32), (33, 32), (255, 32)] {
        assert_eq!(
            ClientIp::peer().ipv4_prefix(prefix),
            Err(ClientIpError::PrefixOutOfRange { prefix, max })
        );
    }
    let error = ClientIp::peer().ipv6_prefix(129).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a prefix of 129 bits is out of range; set 1 to 128"
    );
}

#[test]
fn zero_hops_are_refused() {
    assert_eq!(ClientIp::behind_hops(0), Err(ClientIpError::ZeroHops));
}

#[test]
fn invalid_networks_are_refused() {
    let refused = |network: &str| match ClientIp::behind_networks(["10.0.0.0/8", network]) {
        Err(ClientIpError::NotANetwork { network: given }) => assert_eq!(given, network),
        other => panic!("{network}: {other:?}"),
    };
    let nonsense = [
        "",
        "/",
        "/8",
        "10.0.0.0/",
        "10.0.0.0/33",
        "10.0.0.0/+8",
        "10.0.0.0/-1",
        "10.0.0.0/8/8",
        "10.0.0.0/256",
        "10/8",
    ];
    nonsense.iter().for_each(|network| refused(network));
    let nonsense = [
        " 10.0.0.0/8",
        "10.0.0.0 /8",
        "10.0.0.0/255.0.0.0",
        "fd00::/129",
        "[fd00::]/8",
        "fe80::%1/64",
        "localhost",
        "*",
    ];
    nonsense.iter().for_each(|network| refused(network));
    let error = ClientIp::behind_networks(["10.0.0.0/33"]).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("`10.0.0.0/33` is no network; write "),
        "{error}"
    );
    assert_eq!(
        ClientIp::behind_networks::<&str>([]),
        Err(ClientIpError::NoNetworks)
    );
}

#[test]
fn an_address_with_the_prefix_of_its_network_is_refused() {
    let cases = [
        ("10.0.0.1/8", "10.0.0.0/8"),
        ("fd00::1/8", "fd00::/8"),
        ("::ffff:10.0.0.1/104", "10.0.0.0/8"),
    ];
    for (network, whole) in cases {
        let error = ClientIpError::HostBits {
            network: network.to_owned(),
            whole: whole.to_owned(),
        };
        assert_eq!(ClientIp::behind_networks([network]), Err(error));
        assert!(ClientIp::behind_networks([whole]).is_ok());
    }
}

#[test]
fn networks_that_contain_every_address_are_refused() {
    let refused =
        |networks: &[&str], expected: (&str, &str)| match ClientIp::behind_networks(networks) {
            Err(ClientIpError::TrustsEverybody {
                networks: given,
                family,
            }) => assert_eq!((family, &*given), expected),
            other => panic!("{networks:?}: {other:?}"),
        };
    refused(&["0.0.0.0/0"], ("IPv4", "0.0.0.0/0"));
    refused(
        &["10.0.0.0/8", "0.0.0.0/0", "fd00::/8"],
        ("IPv4", "10.0.0.0/8, 0.0.0.0/0"),
    );
    refused(
        &["128.0.0.0/1", "0.0.0.0/1"],
        ("IPv4", "128.0.0.0/1, 0.0.0.0/1"),
    );
    refused(&["::ffff:0:0/96"], ("IPv4", "0.0.0.0/0"));
    refused(&["::/64"], ("IPv4", "::/64"));
    refused(&["::/0"], ("IPv4", "::/0"));
    refused(
        &["0.0.0.0/1", "10.0.0.0/8", "128.0.0.0/1"],
        ("IPv4", "0.0.0.0/1, 10.0.0.0/8, 128.0.0.0/1"),
    );
    refused(
        &["10.0.0.0/8", "8000::/1", "2000::/3"],
        ("IPv6", "2000::/3"),
    );
    refused(
        &["3000::/4", "2800::/5", "2000::/5"],
        ("IPv6", "3000::/4, 2800::/5, 2000::/5"),
    );
    let unicast = [
        "192.0.0.0/3",
        "128.0.0.0/2",
        "64.0.0.0/2",
        "32.0.0.0/3",
        "16.0.0.0/4",
        "8.0.0.0/5",
        "4.0.0.0/6",
        "2.0.0.0/7",
        "1.0.0.0/8",
    ];
    refused(&unicast, ("IPv4", &unicast.join(", ")));
    for gap in 0..unicast.len() {
        let with_a_gap = unicast
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != gap)
            .map(|(_, network)| network);
        assert!(
            ClientIp::behind_networks(with_a_gap).is_ok(),
            "without {}",
            unicast[gap]
        );
    }
    assert!(ClientIp::behind_networks(["2000::/4", "3000::/5"]).is_ok());
    // All IPv4 addresses except 127.255.255.255.
    let (mut networks, mut first) = (vec!["128.0.0.0/1".to_owned()], 0_u32);
    for prefix in 2..=32 {
        networks.push(format!("{}/{prefix}", Ipv4Addr::from(first)));
        first += 1 << (32 - prefix);
    }
    assert!(ClientIp::behind_networks(&networks).is_ok());
    networks.push("127.255.255.255".to_owned());
    assert!(ClientIp::behind_networks(&networks).is_err());
}

#[test]
fn networks_may_be_addresses_and_print_as_given() {
    let addresses = ClientIp::behind_networks([ip("10.0.0.1"), ip("fd00::1")]).unwrap();
    assert_eq!(
        addresses,
        ClientIp::behind_networks(["10.0.0.1/32", "fd00::1/128"]).unwrap()
    );
    assert!(
        format!("{addresses:?}").contains("[10.0.0.1/32, fd00::1/128]"),
        "{addresses:?}"
    );
}

/// Bytes of a header, most of which have a meaning in the grammar.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
            8 => prop::sample::select(&b"\"\",,;;==\\\\ \tfor109.:[]_%"[..]),
    1 => prop_oneof![32..127_u8, 128..=255_u8, Just(b'\t')],
        ];
    let piece = prop::sample::select(vec![
        "for=203.0.113.66",
        "for=10.0.0.9",
        "10.0.0.8",
        "203.0.113.66",
        ";by=\"",
        "for=\"",
        "\\\"",
        ",",
    ]);
    prop_oneof![
        prop::collection::vec(byte, 0..40),
        prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat().into_bytes()),
    ]
}

fn any_ip() -> impl Strategy<Value = IpAddr> {
    let ipv4 = any::<[u8; 4]>();
    prop_oneof![
        ipv4.prop_map(IpAddr::from),
        ipv4.prop_map(|ip| IpAddr::from(Ipv4Addr::from(ip).to_ipv6_mapped())),
        any::<[u8; 16]>().prop_map(IpAddr::from),
        any::<u16>().prop_map(|group| IpAddr::from([0, 0, 0, 0, 0, group, 1, 2])),
    ]
}

fn any_client_ip() -> impl Strategy<Value = ClientIp> {
    let hops = (1..=5_u8).prop_map(|hops| ClientIp::behind_hops(hops).unwrap());
    prop_oneof![Just(ClientIp::peer()), Just(behind_networks()), hops]
}

/// Whether an address is in one of [`behind_networks`].
fn is_trusted(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(ip) => ip.octets()[0] == 10 || ip.octets() == [192, 0, 2, 7],
        IpAddr::V6(ip) => ip.segments()[..4] == [0xfd00, 4, 0, 0],
    }
}

/// An address in a form that proxies write.
fn node(address: IpAddr, form: u8) -> String {
    match (address, form % 3) {
        (_, 0) => address.to_string(),
        (IpAddr::V4(_), _) => format!("{address}:4711"),
        (IpAddr::V6(_), 1) => format!("[{address}]"),
        (IpAddr::V6(_), _) => format!("[{address}]:_port"),
    }
}

/// An element that a proxy appends: the address, its form, and the bytes of a quoted parameter.
fn appended() -> impl Strategy<Value = (IpAddr, u8, Vec<u8>)> {
    (any_ip(), any::<u8>(), bytes())
}

/// An element by the grammar, with the quoted parameter before or behind the address.
fn element(header: ForwardedHeader, (address, form, parameter): &(IpAddr, u8, Vec<u8>)) -> Vec<u8> {
    let node = node(*address, *form);
    if header == ForwardedHeader::XForwardedFor {
        return node.into_bytes();
    }
    let mut quoted = b"x=\"".to_vec();
    for byte in parameter {
        quoted.extend(b"\\\"".contains(byte).then_some(b'\\'));
        quoted.push(*byte);
    }
    quoted.push(b'"');
    let node = format!("for=\"{node}\"").into_bytes();
    if form & 4 == 0 {
        [node, quoted].join(&b';')
    } else {
        [quoted, node].join(&b';')
    }
}

proptest! {
    #![proptest_config(crate::common::replay::cases(256))]

    #[test]
    fn any_bytes_are_read_without_a_panic_and_grouping_an_address_twice_changes_nothing(
        client_ip in any_client_ip(), prefixes in (1..=32_u8, 1..=128_u8),
        peer in prop::option::of(prop_oneof![any_ip(), Just(ip(PROXY))]), lines in prop::collection::vec(bytes(), 0..4),
    ) {
        let grouped = |client_ip: ClientIp| client_ip.ipv4_prefix(prefixes.0).unwrap().ipv6_prefix(prefixes.1).unwrap();
        for header in HEADERS {
            if let Ok(key) = grouped(client_ip.clone()).header(header).find(peer, &headers(header, &lines)) {
                prop_assert_eq!(key.to_canonical(), key);
                prop_assert_eq!(grouped(ClientIp::peer()).find(Some(key), &HeaderMap::new()), Ok(key));
            }
        }
    }

    /// Only the elements that proxies append decide, whether a proxy extends the last line or adds a line.
    #[test]
    fn nothing_that_the_client_sends_changes_the_answer(
        forged in prop::collection::vec(bytes(), 1..4), client in appended(),
        proxies in prop::collection::vec((any::<u8>(), any::<u8>(), bytes()), 0..4), new_lines in any::<u8>(),
    ) {
        let key = ClientIp::peer().find(Some(client.0), &HeaderMap::new()).unwrap();
        prop_assume!(!is_trusted(client.0));
        let proxies = proxies.into_iter().map(|(host, form, parameter)| (IpAddr::from([10, 0, 0, host]), form, parameter));
        let chain: Vec<_> = [client].into_iter().chain(proxies).collect();
        for header in HEADERS {
            let received = |mut lines: Vec<Vec<u8>>| {
                for (at, appended) in chain.iter().enumerate() {
                    match lines.last_mut().filter(|_| (new_lines >> at) & 1 == 0) {
                        Some(line) => line.extend([b", ".to_vec(), element(header, appended)].concat()),
                        None => lines.push(element(header, appended)),
                    }
                }
                headers(header, &lines)
            };
            let hops = ClientIp::behind_hops(u8::try_from(chain.len()).unwrap()).unwrap();
            for client_ip in [behind_networks().header(header), hops.header(header)] {
                prop_assert_eq!(client_ip.find(Some(ip(PROXY)), &received(Vec::new())), Ok(key));
                prop_assert_eq!(client_ip.find(Some(ip(PROXY)), &received(forged.clone())), Ok(key));
            }
        }
    }
}
