//! The terminal while `top` has it; given back however that ends.

use super::frame::Frame;
use crossterm::{
    cursor::{Hide, MoveTo, Show},
    event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
    queue,
    style::{Attribute, Print, SetAttribute},
    terminal::{
        BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
        LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
    },
};
use std::{
    io::{self, Stdout, Write},
    time::Duration,
};

/// Columns and rows; of a terminal that does not know (a serial line, a recording), what terminals usually have.
fn extent() -> io::Result<(u16, u16)> {
    let (columns, rows) = size()?;
    Ok(if columns == 0 || rows == 0 { (80, 24) } else { (columns, rows) })
}

/// The alternate screen in raw mode.
pub(super) struct Screen {
    out: Stdout,
}

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        enable_raw_mode()?;
        let mut screen = Self { out: io::stdout() };
        queue!(screen.out, EnterAlternateScreen, Hide)?;
        screen.out.flush()?;
        Ok(screen)
    }

    pub(super) fn draw(&mut self, frame: &Frame) -> io::Result<()> {
        let (columns, rows) = extent()?;
        let rows = usize::from(rows);
        queue!(self.out, BeginSynchronizedUpdate, MoveTo(0, 0))?;
        // The last row tells how to leave.
        for line in frame.lines(columns.into(), rows.saturating_sub(1)) {
            let attribute = if line.marked { Attribute::Bold } else { Attribute::Reset };
            queue!(self.out, SetAttribute(attribute), Print(line.text), SetAttribute(Attribute::Reset))?;
            queue!(self.out, Clear(ClearType::UntilNewLine), Print("\r\n"))?;
        }
        queue!(self.out, Clear(ClearType::FromCursorDown))?;
        self.foot("q ends")
    }

    /// Puts a word where the last row is.
    pub(super) fn say(&mut self, what: &str) -> io::Result<()> {
        self.foot(what)
    }

    fn foot(&mut self, what: &str) -> io::Result<()> {
        let (columns, rows) = extent()?;
        let what: String =
            what.chars().filter(|letter| !letter.is_control()).take(usize::from(columns)).collect();
        queue!(
            self.out,
            MoveTo(0, rows.saturating_sub(1)),
            Clear(ClearType::CurrentLine),
            Print(what),
            EndSynchronizedUpdate
        )?;
        self.out.flush()
    }

    /// Whether `q`, Escape or Ctrl-C was pressed. Does not wait.
    pub(super) fn wants_no_more(&self) -> io::Result<bool> {
        while event::poll(Duration::ZERO)? {
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                let interrupted =
                    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if interrupted || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = queue!(self.out, LeaveAlternateScreen, Show);
        let _ = self.out.flush();
        let _ = disable_raw_mode();
    }
}
