//! A server whose clock is wrong: a small library, put before the system's own, shifts the wall clock of one process.
//!
//! The shift lies in a file that the process has mapped, so that a clock can leap while its server runs. Needs a C
//! compiler, which the linker of Rust needs as well.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *shift_us;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("MINUTEHAND_CLOCK_SHIFT");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *at = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) shift_us = at;
    close(file);
}

int clock_gettime(clockid_t id, struct timespec *t) {
    int told = syscall(SYS_clock_gettime, id, t);
    if (told == 0 && shift_us && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        long long us = (long long)t->tv_sec * 1000000 + t->tv_nsec / 1000 + *shift_us;
        t->tv_nsec = us % 1000000 * 1000 + t->tv_nsec % 1000;
        t->tv_sec = us / 1000000;
    }
    return told;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
"#;

/// The wall clock of whichever process is started with its [`env`](Self::env).
#[derive(Debug)]
pub struct WrongClock {
    library: PathBuf,
    shift: PathBuf,
    file: File,
}

impl WrongClock {
    /// A clock that is right until it is shifted; its files lie in `dir`. Fails where there is no C compiler.
    pub fn new(dir: &Path, name: &str) -> io::Result<Self> {
        let (source, library) = (dir.join("clock.c"), dir.join("clock.so"));
        if !library.exists() {
            fs::write(&source, SOURCE)?;
            let mut compiler = Command::new("cc");
            compiler.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
            let told = compiler.stdin(Stdio::null()).output()?;
            if !told.status.success() {
                return Err(io::Error::other(String::from_utf8_lossy(&told.stderr).into_owned()));
            }
        }
        let shift = dir.join(format!("{name}.shift"));
        fs::write(&shift, [0; 8])?;
        let file = OpenOptions::new().write(true).open(&shift)?;
        Ok(Self { library, shift, file })
    }

    /// What a process needs in its environment to go by this clock.
    pub fn env(&self) -> Vec<(String, OsString)> {
        vec![
            ("LD_PRELOAD".into(), self.library.clone().into_os_string()),
            ("MINUTEHAND_CLOCK_SHIFT".into(), self.shift.clone().into_os_string()),
        ]
    }

    /// From now on the clock is this far ahead of the right time, or behind it.
    pub fn shift_ms(&self, ms: i64) -> io::Result<()> {
        self.file.write_all_at(&(ms * 1_000).to_ne_bytes(), 0)
    }
}
