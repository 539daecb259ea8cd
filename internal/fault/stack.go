package fault

import (
	"strings"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/internal/errtree"
)

const (
	maxType = 200 // bytes of the type in a stack

	// goStack is the line before the stack of Go. It begins with blanks and no word, so that
	// ServiceControl takes it for neither a frame nor the end of one.
	goStack = "   --- Go stack:\n"
)

// stack is the value of the header [header.ExceptionStackTrace].
type stack struct {
	typ, text string  // of the error
	frames    []Frame // the place of the panic first; else the handler or the stage that failed
	original  string  // as the error has it
}

// stackOf returns the stack of an error with this text, which failed at a handler or stage.
func stackOf(err error, typ, text string, at Frame) stack {
	s := stack{typ: errtree.Cut(typ, maxType), text: text, original: traceOf(err)}
	if len(text) > maxText-utf8.UTFMax { // it was cut, so that its rest may be in the stack
		s.original, _, _ = strings.Cut(s.original, text)
	}
	if s.frames = frames(s.original); len(s.frames) == 0 && at.String() != "" {
		s.frames = []Frame{at}
	}
	return s
}

// traceOf returns the stack that err, or an error in it, has; "" if there is none.
func traceOf(err error) (trace string) {
	defer func() { _ = recover() }()
	if traced := errtree.Find[interface{ StackTrace() string }](err); traced != nil {
		trace = errtree.Cut(traced.StackTrace(), 4*maxText) // more than remains, with the text at its end whole
	}
	return trace
}

// String returns the type and text of the error, the frames, and the original stack. ServiceControl
// removes the text from the result, so that the first frame is the first line of its form, whatever
// the text is.
func (s stack) String() string {
	var b strings.Builder
	b.WriteString(s.typ + ": " + s.text)
	most := b.Len() + maxFrames
	for _, f := range s.frames {
		line := "\n" + f.String()
		if b.Len()+len(line) > most {
			break
		}
		b.WriteString(line)
	}
	rest := cutBeside(s.original, s.text, max(0, maxText-b.Len()-1-len(goStack)))
	if rest == "" {
		return b.String()
	}
	return b.String() + "\n" + goStack + rest
}

// GoStack returns the stack of Go in a header [header.ExceptionStackTrace]; "" if there is none.
func GoStack(trace string) string {
	i := strings.LastIndex(trace, "\n"+goStack)
	if i < 0 {
		return ""
	}
	return trace[i+1+len(goStack):]
}

// cutBeside returns the beginning of stack, of at most most bytes, and cuts no occurrence of text
// in two. ServiceControl removes the text from the stack before it looks for a frame, and a part of
// the text that is left costs it seconds.
func cutBeside(stack, text string, most int) string {
	if len(stack) <= most {
		return stack
	}
	if text == "" {
		return errtree.Cut(stack, most)
	}
	from := max(0, most-len(text)+1)
	if i := strings.Index(stack[from:min(len(stack), most+len(text)-1)], text); i >= 0 && from+i < most {
		most = from + i
	}
	return errtree.Cut(stack, most)
}
