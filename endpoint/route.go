package endpoint

import "reflect"

// Route says which queue a command goes to. [RouteTo] makes one.
type Route struct {
	goType reflect.Type
	queue  string
}

// RouteTo sends every M, a registered command or response, to the queue of that name
// unless [To] says otherwise.
func RouteTo[M any](queue string) Route {
	return Route{goType: structType(reflect.TypeFor[M]()), queue: queue}
}
