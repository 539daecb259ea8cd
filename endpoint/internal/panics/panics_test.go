package panics

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/recoverability"
)

var errUser = errors.New("no stock")

// worse has a method that panics, too.
type worse struct{}

func (worse) String() string { panic("again") }

// A panic is an error with the stack of the panic.
func TestAPanicIsAnError(t *testing.T) {
	caught := func(v any) (err error) {
		defer Catch(&err)
		panic(v)
	}
	for name, err := range map[string]error{
		"caught": caught(errUser), "apart": Apart(func() error { panic(errUser) }),
	} {
		p, ok := errors.AsType[*recoverability.PanicError](err)
		if !ok || !errors.Is(err, errUser) || err.Error() != "panic: no stock" || len(p.Stack) == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := caught(worse{}); !strings.Contains(err.Error(), "again") || !strings.Contains(Text(worse{}), "again") {
		t.Errorf("a value whose text panics: %v", err)
	}
}

// A function that ends its goroutine ends nothing else.
func TestApart(t *testing.T) {
	err := Apart(func() error {
		runtime.Goexit()
		return nil
	})
	if !errors.Is(err, ErrGoexit) {
		t.Errorf("Goexit: %v", err)
	}
	if err := Apart(func() error { return errUser }); !errors.Is(err, errUser) {
		t.Errorf("an error: %v", err)
	}
	if err := Apart(func() error { return nil }); err != nil {
		t.Errorf("no error: %v", err)
	}
}
