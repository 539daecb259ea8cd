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
			progressbar.OptionSetWriter(out), progressbar.OptionSetWidth(24),
			progressbar.OptionShowCount(), progressbar.OptionSetPredictTime(false),
			progressbar.OptionThrottle(50*time.Millisecond))
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
		fmt.Fprintf(p.out, "%3ds  finished %d of %d  %s\n", p.lines, t.finished(), t.lines, counters(t))
	}
}

// end leaves the bar's line.
func (p *progress) end(t tally) {
	if p.bar != nil {
		p.show(t)
		fmt.Fprintln(p.out)
	}
}

func counters(t tally) string {
	sum := t.total()
	return fmt.Sprintf("sent %d  sales %d  billing %d  shipping %d  retried %d  delayed %d  in error %d",
		t.imported, t.by[sales].settled(), t.by[billing].settled(), t.by[shipping].settled(),
		sum.retried, sum.delayed, sum.failed)
}
