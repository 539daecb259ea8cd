package recoverability

import (
	"testing"

	"github.com/holdfast-go/holdfast/header"
)

// Whatever a message says of its type, it is of each type that it names, and a rule fits
// just those.
func FuzzTypesOfRules(f *testing.F) {
	f.Add("Shop.Price", "Shop.Price")
	f.Add("Shop.Paid, Shop, Version=1.0.0.0;Shop.IEvent", "Shop.IEvent")
	f.Add("G`1[[A, a],[B, b]], c;;", "G`1[[A, a],[B, b]]")
	f.Add(";,[[", "")
	f.Fuzz(func(t *testing.T, enclosed, name string) {
		failure := failed(1, 0)
		failure.Headers = header.New(header.Field{Name: header.EnclosedMessageTypes, Value: enclosed})
		named := false
		for each := range header.TypeNames(enclosed) {
			named = named || each == name
			if !failure.OfType(each) {
				t.Fatalf("the message is not of its type %q", each)
			}
		}
		c := Config{Rules: []Rule{{Types: []string{name}, Action: Discard{}}}}
		_, discarded := c.Decide(failure).(Discard)
		if is := named || name == ""; discarded != is { // without a Type, it is of none
			t.Fatalf("%q is of type %q: %v, by its rule %v", enclosed, name, is, discarded)
		}
	})
}
