package endpoint_test

import (
	"reflect"
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
)

func TestTheCompilerRefusesAMisplacedOption(t *testing.T) {
	send, publish, reply := reflect.TypeFor[endpoint.SendOption](), reflect.TypeFor[endpoint.PublishOption](), reflect.TypeFor[endpoint.ReplyOption]()
	for _, c := range []struct {
		name string
		f    any // makes the option
		want [3]bool
	}{
		{"To", endpoint.To, [3]bool{true, false, true}},
		{"After", endpoint.After, [3]bool{true, false, true}},
		{"At", endpoint.At, [3]bool{true, false, true}},
		{"ReceiptIn", endpoint.ReceiptIn, [3]bool{true, false, true}},
		{"In", endpoint.In, [3]bool{true, true, false}},
		{"Header", endpoint.Header, [3]bool{true, true, true}},
		{"OutgoingOption", endpoint.OutgoingOption, [3]bool{true, true, true}},
	} {
		option := reflect.TypeOf(c.f).Out(0)
		got := [3]bool{option.Implements(send), option.Implements(publish), option.Implements(reply)}
		if got != c.want {
			t.Errorf("%s fits Send, Publish and Reply: %v, want %v", c.name, got, c.want)
		}
	}
}
