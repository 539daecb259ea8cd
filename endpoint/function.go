package endpoint

import (
	"reflect"
	"runtime"
	"strings"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// handledType returns the struct or interface of a handler of t. A pointer to an interface is
// returned unchanged: no type implements it.
func handledType(t reflect.Type) reflect.Type {
	if s := structType(t); s.Kind() != reflect.Interface {
		return s
	}
	return t
}

// shortName returns the name of a function without the path of the package, for example
// "billing.(*Service).Charge".
func shortName(function string) string { return function[strings.LastIndexByte(function, '/')+1:] }

// structType returns the struct type of t, a struct or a pointer to one.
func structType(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// frameOf returns the function of the user at pc. The method of a value has no place in the source,
// because the compiler makes the function.
func frameOf(pc uintptr) fault.Frame {
	f := runtime.FuncForPC(pc)
	file, line := f.FileLine(pc)
	return fault.Frame{Func: strings.TrimSuffix(f.Name(), "-fm"), File: file, Line: line}
}
