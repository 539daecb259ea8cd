package header_test

import (
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/header"
)

func ExampleMap_MarshalJSON() {
	h := header.New(header.Field{Name: "Tenant", Value: "acme"}, header.Field{Name: "Note", Value: `"express"`})
	text, err := h.MarshalJSON()
	if err != nil {
		panic(err)
	}
	again, err := header.ParseJSON(string(text))
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
	fmt.Println(again.Get("Note"))
	// Output:
	// {"Tenant":"acme","Note":"\"express\""}
	// "express"
}

func ExampleFormatDuration() {
	fmt.Println(header.FormatDuration(90 * time.Minute))
	fmt.Println(header.FormatDuration(25*time.Hour + 500*time.Millisecond))
	// Output:
	// 01:30:00
	// 1.01:00:00.5000000
}
