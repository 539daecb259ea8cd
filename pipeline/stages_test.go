package pipeline_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

type noSender struct{}

func (noSender) Send(context.Context, any, ...pipeline.SendOption) error       { return nil }
func (noSender) Publish(context.Context, any, ...pipeline.PublishOption) error { return nil }

func TestNewReceiveShowsTheMessage(t *testing.T) {
	m := &transport.Message{
		ID:      "1",
		Headers: header.New(header.Field{Name: "Colour", Value: "red"}),
		Body:    []byte("body"),
		Native:  map[string]string{"priority": "4"},
	}
	r := pipeline.NewReceive(m, noSender{})
	if r.Message != m || r.Sender() != (noSender{}) {
		t.Error("the message or the sender is another")
	}
	if r.Headers.Get("Colour") != "red" || string(r.Body) != "body" {
		t.Errorf("headers and body are %v and %q", r.Headers, r.Body)
	}
	if got := r.Native("priority"); got != "4" {
		t.Errorf("native property %q, want 4", got)
	}
	if got := r.Native("unknown"); got != "" {
		t.Errorf("unknown native property %q, want none", got)
	}
	m.Native = nil
	if got := r.Native("priority"); got != "" {
		t.Errorf("native property of a message without any: %q", got)
	}
}

func TestAnotherBodyLeavesTheMessageAlone(t *testing.T) {
	m := &transport.Message{Body: []byte("received")}
	r := pipeline.NewReceive(m, noSender{})
	r.Body = []byte("changed")
	if string(r.Body) == string(m.Body) {
		t.Errorf("the message's body is %q now", m.Body)
	}
}

func TestPipelineCopiesShareNothing(t *testing.T) {
	var p pipeline.Pipeline
	through := func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] { return next }
	p.Receive.Use("a", through)
	other := p
	other.Receive.Use("b", through)
	if diff := cmp.Diff([]string{"a"}, p.Receive.Names()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a", "b"}, other.Receive.Names()); diff != "" {
		t.Error(diff)
	}
}

func TestAnAttemptKeepsTheStateOfItsBehaviors(t *testing.T) {
	type key int
	r := pipeline.NewReceive(&transport.Message{}, noSender{})
	if got := r.State(key(0)); got != nil {
		t.Errorf("state %v of an attempt without any", got)
	}
	for i := range 4 {
		r.SetState(key(i%3), i)
	}
	again := r.Recovering(noSender{})
	again.SetState(key(1), "changed")
	again.Headers.Set("Colour", "red")
	for i, want := range []any{3, 1, 2, nil} {
		if got := r.State(key(i)); got != want {
			t.Errorf("state %d is %v, want %v", i, got, want)
		}
	}
	if again.State(key(0)) != 3 || again.State(key(2)) != 2 || again.State(key(1)) != "changed" {
		t.Error("the recovery has another state")
	}
	if r.Headers.Len() != 0 {
		t.Error("the recovery shares the headers")
	}
}
