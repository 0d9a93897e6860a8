//! Code blocks of Markdown pages.

/// A fenced code block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// The first word behind the fence.
    pub(crate) language: String,
    /// The number of the line of the fence.
    pub(crate) line: usize,
    /// The lines between the fences, without the indentation of the fence.
    pub(crate) code: String,
}

/// Returns the fenced code blocks of a page, in their order.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, Block)> = None;
    for (number, line) in (1..).zip(page.lines()) {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        match (text.strip_prefix("```"), open.take()) {
            (Some(_), Some((_, block))) => blocks.push(block),
            (Some(info), None) => {
                let word = info.split([',', ' ']).next().unwrap_or_default();
                let block = Block {
                    language: word.to_owned(),
                    line: number,
                    code: String::new(),
                };
                open = Some((indent, block));
            }
            (None, Some((indent, mut block))) => {
                block.code.push_str(line.get(indent..).unwrap_or_default());
                block.code.push('\n');
                open = Some((indent, block));
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a code block has no end: {open:?}");
    blocks
}

/// Returns the commands of a shell block: without comments, and one for a command of several lines.
pub(crate) fn commands(code: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut begun = String::new();
    for line in code.lines() {
        let line = if begun.is_empty() {
            without_comment(line)
        } else {
            line
        };
        begun.push_str(line.trim_end());
        if let Some(continued) = begun.strip_suffix('\\') {
            begun = continued.to_owned();
        } else if !begun.matches('\'').count().is_multiple_of(2) {
            begun.push('\n');
        } else if !begun.is_empty() {
            commands.push(std::mem::take(&mut begun));
        }
    }
    assert!(begun.is_empty(), "a command has no end: {begun}");
    commands
}

/// Cuts off a comment, which begins a line or follows a space.
fn without_comment(line: &str) -> &str {
    let comment = line
        .find(" #")
        .or_else(|| line.starts_with('#').then_some(0));
    &line[..comment.unwrap_or(line.len())]
}

#[test]
fn blocks_have_their_language_and_lose_their_indentation() {
    let page = "text\n```sh\nls\n```\n- item\n\n  ```rust,no_run\n  if x {\n      y\n  }\n  ```\n";
    let found = blocks(page);
    let parts: Vec<_> = found
        .iter()
        .map(|block| (&*block.language, block.line))
        .collect();
    assert_eq!(parts, [("sh", 2), ("rust", 7)]);
    assert_eq!(found[1].code, "if x {\n    y\n}\n");
}

#[test]
fn commands_lose_comments_and_keep_their_lines() {
    let code = "# first\nls -l   # lists\n\nserver &\nsh -c '\n  a # kept\n  b'\ntrue \\\n  word\n";
    let expected = [
        "ls -l",
        "server &",
        "sh -c '\n  a # kept\n  b'",
        "true   word",
    ];
    assert_eq!(commands(code), expected);
}
