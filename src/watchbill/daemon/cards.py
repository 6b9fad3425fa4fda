"""The cards of a daemon: their probe, and the locks by which it alone uses them (R14)."""

from collections.abc import Mapping

from watchbill.catalog import Catalog
from watchbill.daemon.setting import Setting, owner_of
from watchbill.probes.cards import find_cards
from watchbill.probes.patient import PatientProbe

__all__ = ["Cards"]


class Cards:
    """The cards that the config names: their probe, and the locks by which this daemon alone uses them (R14).

    A card without its driver counts as absent, and models elsewhere are served.
    """

    def __init__(self, catalog: Catalog, setting: Setting) -> None:
        self.probe: PatientProbe | None = None
        self.locks = setting.placing.locks  # of cards that were found, beside those that the config names
        self._owner = owner_of(setting.root)
        if any(name.startswith("gpu:") for name in catalog.devices):
            cards, why = find_cards(setting.options.cards)
            if cards is not None:
                self.probe = PatientProbe(cards)
            else:
                setting.screen.warn(
                    f"no card can be read, so no model is loaded on a card until the next start: {why}"
                )

    def uuids(self) -> Mapping[str, str]:
        """Device -> UUID, of the cards that were read at least once."""
        return {} if self.probe is None else self.probe.uuids

    async def own(self, catalog: Catalog) -> None:
        """Takes the cards of this config. Raises OursError when one belongs to another process."""
        if self.probe is None:
            return
        readings = await self.probe.look()
        uuids = {name: readings[name].uuid for name in catalog.devices if name in readings}
        self.locks.take({name: uuid for name, uuid in uuids.items() if uuid}, self._owner)
