"""For a project's `urls.py`: `path("singlecron/", include("django_singlecron.urls"))`."""

from django.urls import path

from . import views

app_name = "singlecron"

urlpatterns = [path("run/<path:job>/", views.run, name="run")]
