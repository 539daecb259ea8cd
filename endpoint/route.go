package endpoint

import "reflect"

// Route is a queue for the commands of a type, beside [Message.To]. [RouteTo] makes one.
type Route struct {
	goType reflect.Type
	queue  string
}

// RouteTo sends every M, a registered command or response, to the queue of that name unless the
// option [To] says otherwise. It is for a queue that is not known where the message is registered,
// as with messages that several programs share. A type whose [Message.To] is another queue is an
// error of [New].
func RouteTo[M any](queue string) Route {
	return Route{goType: structType(reflect.TypeFor[M]()), queue: queue}
}
