package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// header is the first lines of the file of debts.
const header = `# Figures of the structure that are over their bars (scripts/house/figures.go). A figure may fall
# and never rises. "make house" writes this file. A debt with a reason behind "#" is to stay.
`

// debts are the figures that were over their bars when they were written.
type debts map[string]float64

func readDebts(path string) (debts, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all := debts{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		line, _, _ := strings.Cut(lines.Text(), "#")
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil || i < 0 {
			return nil, fmt.Errorf("%s: %q is no figure", path, line)
		}
		all[line[:i]] = value
	}
	return all, nil
}

// writeDebts writes the figures that are over their bars. Reasons are kept.
func writeDebts(path string, figures []figure) error {
	reasons := map[string]string{}
	if before, err := os.ReadFile(path); err == nil {
		for line := range strings.Lines(string(before)) {
			if text, reason, ok := strings.Cut(line, " #"); ok {
				reasons[text[:max(0, strings.LastIndexByte(text, ' '))]] = " #" + strings.TrimRight(reason, "\n")
			}
		}
	}
	var b strings.Builder
	b.WriteString(header)
	for _, f := range figures {
		if f.value > f.bar {
			fmt.Fprintln(&b, f.String()+reasons[f.key])
		}
	}
	return os.WriteFile(path, []byte(b.String()), 0o644) //nolint:gosec // a file of the repository
}

// check fails if a figure is over its bar and over its debt.
func check(figures []figure, d debts, out io.Writer) error {
	over, fallen := 0, 0
	for _, f := range figures {
		debt, owed := d[f.key]
		switch most := max(f.bar, debt); {
		case f.value > most:
			over++
			fmt.Fprintf(out, "%s: at most %v\n", f, most)
		case owed && f.value < debt:
			fallen++
		}
	}
	if over > 0 {
		return fmt.Errorf("%d figures have risen over their bars: see docs/rules.md", over)
	}
	if fallen > 0 {
		fmt.Fprintf(out, "%d figures have fallen: make house records them\n", fallen)
	}
	return nil
}
