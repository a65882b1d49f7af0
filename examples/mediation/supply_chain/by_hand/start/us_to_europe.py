"""What a European distribution centre makes of US events."""

from .conversions import GERMAN, KILOGRAMS_PER_POUND


def call_for_offers(event):
    return "CallForOffers", {
        **event,
        "delivery": _address(event["delivery"]),
        "lines": _lines(event["lines"]),
    }


def offer(event):
    return "Offer", {
        **event,
        "supplier": _address(event["supplier"]),
        "delivery": _address(event["delivery"]),
        "lines": _lines(event["lines"]),
    }


def order(event):
    return "Order", _with_three_addresses(event)


def confirmation(event):
    return "Confirmation", _with_three_addresses(event)


def shipment(event):
    return "Shipment", {
        **event,
        "delivery": _address(event["delivery"]),
        "lines": _lines(event["lines"]),
    }


def invoice(event):
    return "Invoice", {
        **event,
        "supplier": _address(event["supplier"]),
        "invoice": _address(event["invoice"]),
        "lines": _lines(event["lines"]),
    }


def _with_three_addresses(event):
    return {
        **event,
        "supplier": _address(event["supplier"]),
        "delivery": _address(event["delivery"]),
        "invoice": _address(event["invoice"]),
        "lines": _lines(event["lines"]),
    }


def _address(address):
    number, street = address["line1"].split(" ", 1)
    city, postcode = address["city_line"].split(", ", 1)
    return {
        "name": address["recipient"],
        "number": number,
        "street": street,
        "city": city,
        "postcode": postcode,
        "country": address["country"],
    }


def _lines(lines):
    return [{**line, "product": _product(line["product"])} for line in lines]


def _product(product):
    return {
        "id": product["sku"],
        "description": GERMAN[product["description"]],
        "weight": product["weight"] * KILOGRAMS_PER_POUND,
    }


EVENTS = {
    "UsCallForOffers": call_for_offers,
    "UsOffer": offer,
    "UsOrder": order,
    "UsConfirmation": confirmation,
    "UsShipment": shipment,
    "UsInvoice": invoice,
}
