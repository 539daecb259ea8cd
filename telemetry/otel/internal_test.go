package otel

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/endpoint/endpointtest"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

func TestSystemsHaveTheNamesOfTheConventions(t *testing.T) {
	for want, tr := range map[string]transport.Transport{
		"inmemory":   observed{Transport: &inmemory.Transport{}}, // for other packages that read the name later
		"rabbitmq":   &rabbitmq.Transport{},
		"postgresql": &postgres.Transport{},
		"otel":       unnamed{},
	} {
		if got := systemOf(tr); got != want {
			t.Errorf("%T is %q, want %q", tr, got, want)
		}
	}
}

// unnamed is a transport that does not name its broker.
type unnamed struct{ transport.Transport }

type nilPanics struct{ err error }

func (e *nilPanics) Error() string { return e.err.Error() }
func (e *nilPanics) Unwrap() error { return e.err }

func TestTheTypeOfAnErrorIsTheOneThatTells(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{errors.New("x"), "*errors.errorString"},
		{fmt.Errorf("handler x: %w", recoverability.Unrecoverable(&transport.TooLargeError{})), "*transport.TooLargeError"},
		{fmt.Errorf("handler x: %w", &recoverability.PanicError{Value: errors.New("x")}), "*endpoint.PanicError"},
		{(*nilPanics)(nil), "*otel.nilPanics"},
		{fmt.Errorf("%w and %w", errors.New("a"), errors.New("b")), "*fmt.wrapErrors"},
	} {
		if got := errorType(test.err); got != test.want {
			t.Errorf("%T is %q, want %q", test.err, got, test.want)
		}
	}
	if got := errorText((*nilPanics)(nil)); got != "*otel.nilPanics" {
		t.Errorf("an error that cannot speak says %q", got)
	}
}

func TestEveryOperationHasItsOwnError(t *testing.T) {
	refused := errors.New("refused")
	partial := &transport.DispatchError{Ops: []transport.OpError{{Index: 1, Err: refused}}, Total: 2}
	for _, test := range []struct {
		name     string
		err      error
		index    int
		together bool
		want     error
	}{
		{"none", nil, 0, false, nil},
		{"all", refused, 0, false, refused},
		{"the refused one", partial, 1, false, refused},
		{"its neighbour, which left", partial, 0, false, nil},
		{"its neighbour, which stays together with it", partial, 0, true, partial},
	} {
		if got := errorOf(test.err, test.index, test.together); !errors.Is(got, test.want) || (got == nil) != (test.want == nil) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

type order struct{}

func TestEveryAttemptEndsWhateverItsOutcome(t *testing.T) {
	for name, handler := range map[string]func(context.Context, context.CancelFunc) error{
		"success": func(context.Context, context.CancelFunc) error { return nil },
		"failure": func(context.Context, context.CancelFunc) error { return errors.New("no funds") },
		"panic":   func(context.Context, context.CancelFunc) error { panic("no funds") },
		"interruption": func(ctx context.Context, stop context.CancelFunc) error {
			stop()
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var a *attempt
			cfg := endpoint.Config{Messages: []endpoint.Message{endpoint.Command[order]("Shop.Order")}}
			cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ order) error {
				return handler(ctx, stop)
			})}
			cfg.Pipeline.Invoke.Use("find", func(next pipeline.Func[*pipeline.Invoke]) pipeline.Func[*pipeline.Invoke] {
				return func(ctx context.Context, i *pipeline.Invoke) error {
					a = attemptOf(i.Receive)
					return next(ctx, i)
				}
			})
			Instrument(&cfg, Options{})
			if _, err := endpointtest.Handle(ctx, cfg, order{}); err != nil && name != "interruption" {
				t.Fatal(err)
			}
			if a == nil || !a.ended.Load() {
				t.Errorf("the attempt is %v while it is handled, and has not ended after", a)
			}
		})
	}
}

func TestLabelsAreMadeOnceAndNotWithoutEnd(t *testing.T) {
	ls := newLabels("sales", "inmemory")
	for i := range 2 * maxLabels {
		if m := ls.of(label{message: fmt.Sprint(i)}); len(m.add) != 1 || len(m.record) != 1 {
			t.Fatalf("label %d has no attributes", i)
		}
	}
	if len(ls.made) != maxLabels {
		t.Errorf("%d labels are kept, want %d", len(ls.made), maxLabels)
	}
	if n := testing.AllocsPerRun(100, func() { ls.of(label{message: "1"}) }); n != 0 {
		t.Errorf("a label that was made allocates %v times", n)
	}
}
