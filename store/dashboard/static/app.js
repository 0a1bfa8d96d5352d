// What every page does: times that stay current, switches, copies, dialogs, keys, and news.

import { startClock } from "./times.js";
import { startKeys } from "./keys.js";
import { startNews } from "./news.js";
import { startControls } from "./controls.js";

startClock();
startControls();
startKeys();
startNews();
