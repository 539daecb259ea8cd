package demo

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress shows how far the demo has come: a bar on a terminal, a line every
// second elsewhere.
type progress struct {
	out   io.Writer
	bar   *progressbar.ProgressBar // nil without a terminal
	start time.Time
	lines int // written so far
}

func newProgress(out io.Writer, total int) *progress {
	p := &progress{out: out, start: time.Now()}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions(total,
			progressbar.OptionSetWriter(out), progressbar.OptionFullWidth(),
			progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false))
	}
	return p
}

// show is called again and again with what is done so far.
func (p *progress) show(t tally) {
	if p.bar != nil {
		p.bar.Describe(counters(t))
		_ = p.bar.Set(t.finished()) // it fails past its end only
		return
	}
	if elapsed := time.Since(p.start); int(elapsed/time.Second) > p.lines {
		p.lines = int(elapsed / time.Second)
		fmt.Fprintf(p.out, "%3ds  finished %d of %d  sent %d  %s\n", p.lines, t.finished(), t.lines, t.imported, counters(t))
	}
}

// end leaves the bar's line.
func (p *progress) end(t tally) {
	if p.bar != nil {
		p.show(t)
		fmt.Fprintln(p.out)
	}
}

// counters fit into a terminal's line together with a short bar.
func counters(t tally) string {
	sum := t.total()
	return fmt.Sprintf("sales %d billing %d shipping %d retried %d delayed %d error %d",
		t.by[sales].settled(), t.by[billing].settled(), t.by[shipping].settled(), sum.retried, sum.delayed, sum.failed)
}
