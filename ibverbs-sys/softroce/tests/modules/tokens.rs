//! Tokens of Rust source, without comments.

/// A word, a literal, `::`, or another single character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    /// Text of the token.
    pub(crate) text: &'a str,
    /// Line on which the token begins, counted from 1.
    pub(crate) line: usize,
}

/// Returns the tokens of a source text. A lifetime is a `'` and a word.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (source, 1);
    while let Some(first) = rest.chars().next() {
        let length = length(rest, first);
        let (text, behind) = rest.split_at(length);
        let is_comment = text.starts_with("//") || text.starts_with("/*");
        if !is_comment && !first.is_whitespace() {
            tokens.push(Token { text, line });
        }
        line += text.matches('\n').count();
        rest = behind;
    }
    tokens
}

/// Returns the length of the token, comment or white space at the start of the text.
fn length(text: &str, first: char) -> usize {
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_';
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return block_comment(text);
    }
    if text.starts_with("::") {
        return 2;
    }
    match first {
        '"' => quoted(text),
        '\'' => character(text).unwrap_or(1),
        _ if is_of_word(first) => {
            let word = text.find(|c| !is_of_word(c)).unwrap_or(text.len());
            match &text[..word] {
                "r" | "br" | "cr" => word + raw(&text[word..]).unwrap_or(0),
                _ => word,
            }
        }
        _ => first.len_utf8(),
    }
}

/// Returns the length of a comment in `/* */`, which may contain others.
fn block_comment(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if rest.starts_with(b"*/") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// Returns the length of a string in quotation marks.
fn quoted(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !is_escaped => return at + 1,
            _ => is_escaped = c == '\\' && !is_escaped,
        }
    }
    text.len()
}

/// Returns the length of a raw string after its prefix, or `None` for a raw identifier.
fn raw(text: &str) -> Option<usize> {
    let hashes = text.len() - text.trim_start_matches('#').len();
    text[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", &text[..hashes]);
    let start = hashes + 1;
    let found = text[start..].find(&end);
    Some(found.map_or(text.len(), |found| start + found + end.len()))
}

/// Returns the length of a character literal, or `None` if the quotation mark begins a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut characters = text.char_indices().skip(1);
    let (_, first) = characters.next()?;
    if first == '\\' {
        characters.next()?;
        let (end, _) = characters.find(|&(_, c)| c == '\'')?;
        return Some(end + 1);
    }
    let (end, second) = characters.next()?;
    (second == '\'').then_some(end + 1)
}

#[test]
fn comments_are_no_tokens_and_literals_are_one() {
    let source = r##"a::b // crate::c "
/* crate::d /* nested */ " */ 'x' '\'' '\u{1f600}' "crate::e \" \\" r#"crate::f " g"# &'static 1"##;
    let found: Vec<(&str, usize)> = tokens(source)
        .iter()
        .map(|token| (token.text, token.line))
        .collect();
    let first = [("a", 1), ("::", 1), ("b", 1)];
    let second = [
        "'x'",
        r"'\''",
        r"'\u{1f600}'",
        r#""crate::e \" \\""#,
        r##"r#"crate::f " g"#"##,
        "&",
        "'",
        "static",
        "1",
    ];
    let all: Vec<(&str, usize)> = first
        .into_iter()
        .chain(second.map(|text| (text, 2)))
        .collect();
    assert_eq!(found, all);
}

#[test]
fn lines_are_counted_in_comments_and_strings() {
    let found = tokens("/*\n\n*/ a \"\n\" b\n\nc");
    let lines: Vec<usize> = found.iter().map(|token| token.line).collect();
    assert_eq!(lines, [3, 3, 4, 6]);
}
