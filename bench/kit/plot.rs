//! Small pictures as SVG: lines over time, and bars side by side. They stand on light and dark pages alike.

use std::fmt::Write;

/// One line of a chart.
pub struct Line {
    /// What it is.
    pub name: String,
    /// Its points, in order of x.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 760.0;
const COLORS: [&str; 6] = ["#888888", "#d9480f", "#1971c2", "#2f9e44", "#9c36b5", "#e8a400"];
const STYLE: &str = "text{font:13px sans-serif;fill:#222}.t{font-weight:bold;font-size:15px}.g{stroke:#ddd}.n{text-anchor:end}.m{text-anchor:middle}";

fn head(height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">\n\
         <style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    )
}

/// A text as XML writes it.
fn plain(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A round step that divides `most` into about `parts`.
fn step(most: f64, parts: f64) -> f64 {
    let raw = (most / parts).max(f64::MIN_POSITIVE);
    let ten = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|round| round * ten).find(|round| *round >= raw).unwrap_or(raw)
}

/// A number as people write it.
pub fn number(value: f64) -> String {
    let text = if value.abs() >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    };
    let digits = text.len() - usize::from(text.contains('.')) * 2;
    if digits <= 3 || text.contains('.') {
        return text;
    }
    let mut out = String::new();
    for (at, digit) in text.chars().enumerate() {
        if at > 0 && (text.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Lines over a common scale.
pub fn lines(title: &str, x_name: &str, y_name: &str, lines: &[Line]) -> String {
    let (left, right, top, bottom, height) = (70.0, 20.0, 56.0, 46.0, 380.0);
    let most = |of: fn(&(f64, f64)) -> f64| {
        lines.iter().flat_map(|line| line.points.iter().map(of)).fold(f64::MIN_POSITIVE, f64::max)
    };
    let (x_most, y_most) = (most(|p| p.0), most(|p| p.1));
    let x = |value: f64| left + value / x_most * (WIDTH - left - right);
    let y = |value: f64| height - bottom - value / y_most * (height - top - bottom);
    let mut out = head(height);
    let _ = writeln!(out, "<text class=\"t\" x=\"{left}\" y=\"22\">{}</text>", plain(title));
    let _ = writeln!(out, "<text x=\"{left}\" y=\"44\">{}</text>", plain(y_name));
    let (x_step, y_step) = (step(x_most, 8.0), step(y_most, 5.0));
    for n in 0..=(y_most / y_step) as usize {
        let value = n as f64 * y_step;
        let at = y(value);
        let _ = writeln!(
            out,
            "<line class=\"g\" x1=\"{left}\" x2=\"{:.0}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",
            WIDTH - right
        );
        let _ = writeln!(
            out,
            "<text class=\"n\" x=\"{}\" y=\"{:.1}\">{}</text>",
            left - 8.0,
            at + 4.0,
            number(value)
        );
    }
    for n in 0..=(x_most / x_step) as usize {
        let value = n as f64 * x_step;
        let _ = writeln!(
            out,
            "<text class=\"m\" x=\"{:.1}\" y=\"{:.0}\">{}</text>",
            x(value),
            height - bottom + 18.0,
            number(value)
        );
    }
    let _ = writeln!(
        out,
        "<text class=\"n\" x=\"{:.0}\" y=\"{:.0}\">{}</text>",
        WIDTH - right,
        height - 10.0,
        plain(x_name)
    );
    for (at, line) in lines.iter().enumerate() {
        let color = COLORS[at % COLORS.len()];
        let dash = if at == 0 { " stroke-dasharray=\"5 4\"" } else { "" };
        let mut path = String::new();
        for (point_x, point_y) in &line.points {
            let _ = write!(path, "{:.1},{:.1} ", x(*point_x), y(*point_y));
        }
        let _ = writeln!(
            out,
            "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"{dash} points=\"{}\"/>",
            path.trim_end()
        );
        let row = height - bottom - 18.0 * (lines.len() - at) as f64 + 4.0;
        let from = WIDTH - right - 210.0;
        let _ = writeln!(
            out,
            "<line x1=\"{from}\" x2=\"{}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{color}\" stroke-width=\"2\"{dash}/>",
            from + 24.0,
            row - 4.0,
            row - 4.0
        );
        let _ = writeln!(out, "<text x=\"{}\" y=\"{row:.1}\">{}</text>", from + 32.0, plain(&line.name));
    }
    out + "</svg>\n"
}

/// Groups of bars below each other, each group with a scale of its own. The first bar of a group stands out.
pub fn bars(title: &str, groups: &[(String, Vec<(String, f64)>)]) -> String {
    let (left, bar, gap) = (190.0, 18.0, 40.0);
    let rows: usize = groups.iter().map(|(_, bars)| bars.len()).sum();
    let height = 46.0 + rows as f64 * bar + groups.len() as f64 * gap;
    let mut out = head(height);
    let _ = writeln!(out, "<text class=\"t\" x=\"12\" y=\"22\">{}</text>", plain(title));
    let mut at = 36.0;
    for (name, bars) in groups {
        at += 20.0;
        let _ = writeln!(out, "<text x=\"12\" y=\"{at:.0}\" font-weight=\"bold\">{}</text>", plain(name));
        at += 6.0;
        let most = bars
            .iter()
            .map(|(_, value)| *value)
            .filter(|value| value.is_finite())
            .fold(f64::MIN_POSITIVE, f64::max);
        for (row, (name, value)) in bars.iter().enumerate() {
            let color = if row == 0 { COLORS[1] } else { "#9aa5b1" };
            let width =
                (if value.is_finite() { *value } else { 0.0 }).max(0.0) / most * (WIDTH - left - 90.0);
            let text = if value.is_finite() { number(*value) } else { "failed".to_owned() };
            let _ = writeln!(
                out,
                "<text class=\"n\" x=\"{}\" y=\"{:.0}\">{}</text>",
                left - 8.0,
                at + 13.0,
                plain(name)
            );
            let _ = writeln!(
                out,
                "<rect x=\"{left}\" y=\"{:.0}\" width=\"{width:.1}\" height=\"{}\" fill=\"{color}\"/>",
                at + 2.0,
                bar - 4.0
            );
            let _ =
                writeln!(out, "<text x=\"{:.1}\" y=\"{:.0}\">{text}</text>", left + width + 6.0, at + 13.0);
            at += bar;
        }
        at += gap - 26.0;
    }
    out + "</svg>\n"
}
