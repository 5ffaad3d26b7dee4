//! A proxy of one port that can delay what comes back.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use minutehand::clock;

/// Listens until the process ends.
#[derive(Debug, Clone)]
pub struct Proxy {
    delay_us: Arc<AtomicU64>,
}

impl Proxy {
    /// Forwards `port` to `upstream`, both of this machine. A connection that begins with `!` and a number instead of a
    /// command sets the delay in ms.
    pub fn start(port: u16, upstream: u16) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let proxy = Self { delay_us: Arc::default() };
        let own = proxy.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let own = own.clone();
                std::thread::spawn(move || own.serve(client, upstream));
            }
        });
        Ok(proxy)
    }

    /// Delays all that comes back from now on.
    pub fn delay(&self, delay: Duration) {
        self.delay_us.store(u64::try_from(delay.as_micros()).unwrap_or(0), Ordering::Relaxed);
    }

    fn serve(&self, mut client: TcpStream, upstream: u16) -> io::Result<()> {
        client.set_nodelay(true)?;
        let mut first = [0];
        if client.peek(&mut first)? == 1 && first == *b"!" {
            let mut text = String::new();
            client.read_to_string(&mut text)?;
            let ms = text.trim_start_matches('!').trim().parse().unwrap_or(0);
            self.delay(Duration::from_millis(ms));
            return Ok(());
        }
        let mut server = TcpStream::connect(("127.0.0.1", upstream))?;
        server.set_nodelay(true)?;
        let (mut from, mut to) = (server.try_clone()?, client.try_clone()?);
        let (send, late) = mpsc::channel::<(Instant, Vec<u8>)>();
        let delay = Arc::clone(&self.delay_us);
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                let at = clock::mono() + Duration::from_micros(delay.load(Ordering::Relaxed));
                if send.send((at, buffer[..n].to_vec())).is_err() {
                    return;
                }
            }
        });
        std::thread::spawn(move || {
            for (at, bytes) in late {
                std::thread::sleep(at.saturating_duration_since(clock::mono()));
                if to.write_all(&bytes).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
        io::copy(&mut client, &mut server)?;
        server.shutdown(Shutdown::Both)
    }
}
