package stateful

import (
	"testing"

	"github.com/holdfast-go/holdfast/header"
)

type message struct{ N int }

func (*message) Number() int { return 1 }

func TestAsConvertsToWhatAHandlerTakes(t *testing.T) {
	value := &message{7}
	if As[message](value).N != 7 || As[*message](value) != value || As[interface{ Number() int }](value).Number() != 1 {
		t.Error("As returned another message")
	}
	defer func() {
		if recover() == nil {
			t.Error("As of another type did not panic")
		}
	}()
	As[string](value)
}

func TestKindsOfEndpointsDiffer(t *testing.T) {
	if KindOf("a", "b") == KindOf("b", "a") || KindOf("b.a", "c") == KindOf("a", "c.b") {
		t.Error("two kinds are equal")
	}
}

func TestHeadersOfACallAreDefaults(t *testing.T) {
	h := header.New(header.Field{Name: "a", Value: "theirs"})
	c := new(Call)
	c.SetOutgoing("a", "ours")
	c.SetOutgoing("b", "ours")
	c.AddOutgoing(&h)
	if h.Get("a") != "theirs" || h.Get("b") != "ours" || h.Len() != 2 {
		t.Errorf("headers %v", h)
	}
	if CallOf(t.Context()) != nil || CallOf(c.In(t.Context())) != c {
		t.Error("CallOf found another call")
	}
}
