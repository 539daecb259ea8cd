package sqs

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/transport"
)

// copied returns a delivery of one of several copies of a message.
func (in *inFlight) copied(native, attribute, value string) (*delivery, *types.Message) {
	d := &delivery{inFlight: in, message: transport.Message{ID: "m", NativeID: native}}
	m := &types.Message{MessageAttributes: map[string]types.MessageAttributeValue{}}
	if attribute != "" {
		m.MessageAttributes[attribute] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &value}
	}
	in.held[native] = d
	return d, m
}

func (in *inFlight) returned(d *delivery) { delete(in.held, d.message.NativeID) }

// A second copy is left out while the first copy is in flight, and after the first copy was
// handled.
func TestASecondCopyIsLeftOut(t *testing.T) {
	for _, kind := range []struct{ attribute, first, second string }{
		{copyAttribute, "0", "1"},
		{copyAttribute, "1", "0"},
		{hopAttribute, "deferral", "deferral"},
	} {
		in := &inFlight{held: map[string]*delivery{}}
		one, m1 := in.copied("one", kind.attribute, kind.first)
		if in.isRedundant(one, m1) {
			t.Errorf("%+v: the first copy is left out", kind)
		}
		two, m2 := in.copied("two", kind.attribute, kind.second)
		if !in.isRedundant(two, m2) {
			t.Errorf("%+v: both copies are delivered while the first is in flight", kind)
		}
		in.finished(two) // it is deleted
		in.returned(two)
		in.returned(one) // its handler has failed
		again, m1 := in.copied("one", kind.attribute, kind.first)
		if in.isRedundant(again, m1) {
			t.Errorf("%+v: the first copy is lost: the other is gone, and left it", kind)
		}
		in.finished(again)
		in.returned(again)
		late, m2 := in.copied("three", kind.attribute, kind.second)
		if !in.isRedundant(late, m2) {
			t.Errorf("%+v: a copy of a completed message is delivered", kind)
		}
	}
}

// What was sent on is no copy any more: the message that comes back from the error queue, or after
// a delay, is handled.
func TestWhatWasSentOnIsNoCopy(t *testing.T) {
	in := &inFlight{held: map[string]*delivery{}}
	one, m := in.copied("one", copyAttribute, "1")
	in.isRedundant(one, m)
	in.finished(one)
	in.returned(one)
	returned, m := in.copied("two", "", "")
	if in.isRedundant(returned, m) {
		t.Error("it is left out")
	}
}

// While neither is in flight, each copy may be delivered.
func TestACopyAtAnotherProcessLeavesNoneOut(t *testing.T) {
	in := &inFlight{held: map[string]*delivery{}}
	one, m := in.copied("one", copyAttribute, "0")
	in.isRedundant(one, m)
	in.returned(one)
	two, m := in.copied("two", copyAttribute, "1")
	if in.isRedundant(two, m) {
		t.Error("it is left out")
	}
}
